import { answerOf } from "../../client/client.ts";
import { listDirectory } from "../../client/transfers.ts";
import { figureOf, interleaved, quantile, rowOf, timed } from "./figures.ts";
import type { PeerServer } from "./host.ts";
import { type LoadTarget, rateOf, spansAt } from "./load.ts";
import { remarkOf } from "./report.ts";
import type { BenchTarget, Findings } from "./target.ts";

const LOOKS_PER_ROUND = 20;
const CONNECTIONS_COUNT = 16;
const REQUESTS_PER_SECOND = 100;
const WARM_UP_MS = 500;
const BUSY_MS_MAX = 60_000;
const POLL_MS = 100;
const ENDS = { from: "request sent", to: "answer read", unit: "ms" };

/** Looking into an image without a machine, and at what there is. */
export async function looksPart(target: BenchTarget, { rows, remarks, missing }: Findings): Promise<void> {
  const { client, image } = target;
  const { signal } = target.options;
  const query = { path: "/bin/sh" };
  const values = await interleaved(target.rounds(25, 5) * LOOKS_PER_ROUND, {
    list: () => timed(() => listDirectory(client, { image, path: "/", signal })),
    stat: () => timed(() => client.call("HEAD", `/inspect/${image}/`, { query, signal })),
    operations: () => timed(() => answerOf(client.v1.operations.get({ query: { limit: 100 }, fetch: { signal } }))),
  });
  rows.push(
    rowOf({ ...ENDS, name: "list the root of the image", values: values.list, atMost: 5 }),
    rowOf({ ...ENDS, name: "stat a path in the image", values: values.stat, atMost: 5 }),
  );
  const ends = `from ${ENDS.from} to ${ENDS.to}`;
  remarks.push(remarkOf("list the newest 100 operations", figureOf(values.operations, "ms"), ends));
  const text = "that takes a store of its own; `make bench` fills one";
  missing.push({ name: "listing with 1,000,000 operations against 1,000", text });
}

/** GET of an operation: how many, and how late while machines compute. */
export async function ratesPart(target: BenchTarget, { rows, remarks, missing }: Findings): Promise<void> {
  const { client, image, options } = target;
  await target.run(image, "true", { disposable: true });
  const [operation] = await answerOf(client.v1.operations.get({ query: { limit: 1, kind: "instance" } }));
  const id = operation?.id ?? "";
  const ours: LoadTarget = client.target(`/operations/${id}`);
  if (!ours.url.startsWith("http://")) {
    return void missing.push({ name: "GET of an operation", text: "the load is made over plain HTTP only" });
  }
  const name = "GET of an operation";
  const from = `request sent, ${CONNECTIONS_COUNT} connections`;
  using peer = await routePeer(target, await answerOf(client.v1.operations({ id }).get()));
  await rateOf(ours, CONNECTIONS_COUNT, WARM_UP_MS);
  await target.poolFull();
  const durationMs = options.quick ? 1000 : 3000;
  const rate = (of: LoadTarget) => () => rateOf(of, CONNECTIONS_COUNT, durationMs);
  const rounds = target.rounds(7, 3);
  if ("problem" in peer) {
    const values = await interleaved(rounds, { ours: rate(ours) });
    remarks.push(remarkOf(name, figureOf(values.ours, "/s"), `from ${from} to ${ENDS.to}`));
    missing.push({ name: `${name}, against a bare Elysia route`, text: peer.problem });
  } else {
    const theirs = { ...ours, url: new URL(new URL(ours.url).pathname, peer.url).href };
    await rateOf(theirs, CONNECTIONS_COUNT, WARM_UP_MS);
    const values = await interleaved(rounds, { ours: rate(ours), theirs: rate(theirs) });
    const against = { name: "bare Elysia route, same tokens and schema", values: values.theirs };
    rows.push(rowOf({ name, from, to: ENDS.to, values: values.ours, unit: "/s", against, atLeast: 0.6 }));
  }
  await besideMachines(target, ours, { rows });
}

async function routePeer(
  { options }: BenchTarget,
  operation: unknown,
): Promise<PeerServer | (Disposable & { readonly problem: string })> {
  const { local, config } = options;
  try {
    return await local.startRoutePeer(config, operation);
  } catch (error) {
    if (!(error instanceof local.NoComparisonError)) throw error;
    return { problem: error.message, [Symbol.dispose]: () => undefined };
  }
}

async function besideMachines(target: BenchTarget, ours: LoadTarget, { rows }: Pick<Findings, "rows">): Promise<void> {
  const spans = target.options.quick ? { count: 5, durationMs: 2000 } : { count: 7, durationMs: 3000 };
  await target.poolFull();
  const alone = (await spansAt(ours, REQUESTS_PER_SECOND, spans)).flat();
  const busy: string[] = [];
  for (let n = 0; n < 2; n++) {
    busy.push(await target.start(target.image, "while :; do :; done", { timeout: 600, disposable: true }));
  }
  for (const id of busy) await untilExecuting(target, id);
  const late = await spansAt(ours, REQUESTS_PER_SECOND, spans);
  for (const id of busy) await target.stop(id);
  const [middle, quiet] = [quantile(late.flat(), 0.5), quantile(alone, 0.99)].map((ms) => ms.toFixed(2));
  rows.push(
    rowOf({
      ...ENDS,
      name: "GET of an operation, p99 at 100/s beside 2 busy VMs",
      values: late.map((span) => quantile(span, 0.99)),
      atMost: 10,
      note: `median ${middle} ms of ${late.flat().length}; without the VMs p99 ${quiet} ms`,
    }),
  );
}

async function untilExecuting({ client, options }: BenchTarget, id: string): Promise<void> {
  const deadline = performance.now() + BUSY_MS_MAX;
  for (;;) {
    options.signal.throwIfAborted();
    const { status } = await answerOf(client.v1.operations({ id }).get());
    if (status === "EXECUTING") return;
    if (status !== "PENDING" || performance.now() > deadline) throw new Error(`two VMs do not run: one is ${status}`);
    await Bun.sleep(POLL_MS);
  }
}
