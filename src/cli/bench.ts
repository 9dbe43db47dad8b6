import type { InstanceResult, Operation } from "../domain/operation.ts";
import { figureOf, interleaved, type Row, rowOf, timed } from "./bench-figures.ts";
import { phaseMeans, type Remark, remarkOf, reportText } from "./bench-report.ts";
import { ApiClient, CLIENT_OPTIONS } from "./client.ts";
import {
  CliError,
  type Command,
  command,
  EXIT_FAILED,
  expectPositionals,
  integerOption,
  JSON_OPTION,
  UsageError,
} from "./command.ts";

const ROUNDS_DEFAULT = 10;
/** For so long a spawn is put off until the pool is full, in `milliseconds`. */
const POOL_MS_MAX = 15_000;
const POOL_POLL_MS = 100;
const LOOKS_PER_ROUND = 20;
const UPLOAD_BYTES = 64 * 1_048_576;
const LOOK_MS_MAX = 5;
const WAIT_SECONDS = 60;
const CHANGE = "echo changed > /root/coppice-bench";

export const benchCommand: Command = command({
  name: "bench",
  summary: "measure a running appliance from outside",
  synopsis: "--image IMAGE [OPTIONS]",
  description:
    "Spawns instances of the image, looks into it, and uploads a file. What needs the machine itself\n" +
    "for a comparison is measured by `make bench` of the sources. The image needs /bin/sh; images that\n" +
    "are made here are deleted again, and the exit code is 1 when a bar is missed.",
  examples: ["coppice bench --image tag:debian", "coppice bench --image tag:debian --rounds 30 --json"],
  options: {
    image: { type: "string", value: "IMAGE", doc: "uuid, or tag:NAME" },
    rounds: { type: "string", value: "COUNT", doc: `how often each is measured (default: ${ROUNDS_DEFAULT})` },
    ...JSON_OPTION,
    ...CLIENT_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    if (options.image === undefined) throw new UsageError("--image is missing");
    const client = new ApiClient(environment, options.url);
    const rounds = integerOption("rounds", options.rounds, 1) ?? ROUNDS_DEFAULT;
    const image = await client.imageId(options.image);
    const metrics = () => client.metrics();
    const before = await metrics();
    const remarks = [...(await spawns(client, { image, rounds, metrics })), await uploads(client, rounds)];
    const phases = phaseMeans(before, await metrics());
    if (phases !== "") remarks.push({ name: "steps of these spawns, mean ms", text: phases });
    const rows = await looks(client, image, rounds);
    await io.stdout(
      options.json === true ? `${JSON.stringify({ rows, remarks }, null, 2)}\n` : reportText(rows, remarks),
    );
    return rows.every(({ holds }) => holds) ? 0 : EXIT_FAILED;
  },
});

interface Spawning {
  readonly image: string;
  readonly rounds: number;
  readonly metrics: () => Promise<string>;
}

async function spawns(client: ApiClient, { image, rounds, metrics }: Spawning): Promise<Remark[]> {
  const paused = async (work: () => Promise<unknown>): Promise<number> => {
    await poolFull(metrics);
    return await timed(work);
  };
  const values = await interleaved(rounds, {
    disposable: () => paused(() => run(client, { image, command: "true", disposable: true })),
    kept: async () => {
      let made = "";
      const durationMs = await paused(async () => {
        made = (await run(client, { image, command: CHANGE })).image ?? "";
      });
      if (made !== "" && made !== image) await client.call("DELETE", `/images/${made}`);
      return durationMs;
    },
  });
  const ends = "from POST /v1/instances to SUCCESS read";
  return [
    remarkOf("spawn of true, disposable", figureOf(values.disposable, "ms"), ends),
    remarkOf("spawn that changes a file, captured", figureOf(values.kept, "ms"), ends),
  ];
}

/** Waits until a spawn will find a machine that is ready, where the appliance tells. */
async function poolFull(metrics: () => Promise<string>): Promise<void> {
  const deadline = performance.now() + POOL_MS_MAX;
  while (performance.now() < deadline) {
    const text = await metrics();
    const value = (name: string): string | undefined => new RegExp(`^${name} (\\d+)$`, "m").exec(text)?.[1];
    if (value("coppice_pool_ready") === value("coppice_pool_size")) return;
    await Bun.sleep(POOL_POLL_MS);
  }
}

async function run(client: ApiClient, request: Record<string, unknown>): Promise<InstanceResult> {
  const { uuid } = await client.json<{ uuid: string }>("POST", "/instances", { json: { shell: true, ...request } });
  for (;;) {
    const operation = await client.json<Operation>("GET", `/operations/${uuid}`, { query: { wait: WAIT_SECONDS } });
    if (operation.status === "SUCCESS") return operation.result as InstanceResult;
    if (operation.status === "FAILED" || operation.status === "CANCELLED") {
      throw new CliError(`instance ${uuid} ended ${operation.status}: ${operation.error?.message ?? ""}`);
    }
  }
}

/** Each round uploads other bytes, which are not there yet. */
async function uploads(client: ApiClient, rounds: number): Promise<Remark> {
  const bytes = new Uint8Array(UPLOAD_BYTES);
  const rates: number[] = [];
  for (let round = 0; round < rounds; round++) {
    crypto.getRandomValues(bytes.subarray(0, 64));
    const body = new Blob([bytes]);
    const durationMs = await timed(() => client.call("POST", "/files", { body, deadline: false }));
    rates.push(UPLOAD_BYTES / 1_048_576 / (durationMs / 1000));
  }
  return remarkOf("upload of 64 MiB", figureOf(rates, "MiB/s"), "from the request to 201, content synced");
}

async function looks(client: ApiClient, image: string, rounds: number): Promise<Row[]> {
  const operations = await client.json<Operation[]>("GET", "/operations", { query: { limit: 1 } });
  const id = operations[0]?.id ?? "";
  const values = await interleaved(rounds * LOOKS_PER_ROUND, {
    list: () => timed(() => client.json("GET", `/inspect/${image}/list`, { query: { path: "/" } })),
    stat: () => timed(() => client.call("HEAD", `/inspect/${image}/`, { query: { path: "/bin/sh" } })),
    operation: () => timed(() => client.json("GET", `/operations/${id}`)),
  });
  const ends = { from: "request sent", to: "answer read", unit: "ms", atMost: LOOK_MS_MAX };
  return [
    rowOf({ ...ends, name: "list the root of the image", values: values.list }),
    rowOf({ ...ends, name: "stat a path in the image", values: values.stat }),
    rowOf({ ...ends, name: "GET of an operation", values: values.operation }),
  ];
}
