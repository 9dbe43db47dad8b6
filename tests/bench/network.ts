import { join } from "node:path";
import { figureOf, interleaved, timed } from "../../src/cli/bench/measure.ts";
import { remarkOf } from "../../src/cli/bench/report.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import { exec } from "../../src/cli/bench/running.ts";
import { nameServer } from "../support/network/site/name-server.ts";
import { PEER_PORTS, Peers } from "../support/network/site/site-peers.ts";
import { zeros } from "../support/network/site/web.ts";
import { uploadProgram } from "../support/runs.ts";
import { BenchHost } from "./host.ts";

const NAME = "bench.test";
const INSTANCE_SECONDS = 1800;
const MEGABYTE = 1_000_000;
const PROGRAM = "/usr/bin/traffic";
const CROWD_COUNT = 200;
const OPENS_COUNT = 200;
const ENDS = { from: "POST /v1/instances/{uuid}/processes, sent", to: "its end read from its events" };

/** Connections of a guest to servers of this process, against the standard output of the same guest. */
export async function* networkRows({ quick }: BenchHost): AsyncGenerator<Finding> {
  await using stack = new AsyncDisposableStack();
  const [a = 0, b = 0] = crypto.getRandomValues(new Uint8Array(2));
  const block = `127.${16 + (a % 200)}.${b}.`;
  const addresses = [`${block}7`];
  const names = stack.use(await nameServer((name) => (name === NAME ? { addresses } : null)));
  stack.use(await Peers.start(`${block}7`));
  let requested = Promise.withResolvers<void>();
  const web = Bun.serve({
    ...{ hostname: `${block}7`, port: 0, idleTimeout: 0 },
    fetch: ({ url }) => {
      requested.resolve();
      return new Response(zeros(Number(new URL(url).pathname.split("/").at(-1))));
    },
  });
  stack.defer(() => web.stop(true));
  const tables = `
[network]
allow = ["${NAME}:*"]
private = ["${NAME}"]
resolvers = ["${names.address}"]
opens_per_second = 10000`;
  const { appliance, target } = stack.use(await BenchHost.start(quick, { tables }));
  const source = await Bun.file(join(import.meta.dir, "../support/network/traffic.c")).text();
  const id = await target.start(target.image, `sleep ${INSTANCE_SECONDS}`, {
    disposable: true,
    timeout: INSTANCE_SECONDS,
    files: { [PROGRAM]: { uuid: await uploadProgram(appliance, "traffic", source), mode: "0755" } },
    network: { allow: [{ host: NAME, ports: "*" }] },
  });
  await target.untilRunning(id);
  const traffic = (args: string): Promise<void> => exec(target, id, `${PROGRAM} ${args}`);
  await traffic(`opens ${NAME} ${PEER_PORTS.echo} 1`);
  await target.poolFull();

  const bytes = (quick ? 50 : 100) * MEGABYTE;
  const rate = async (args: string): Promise<number> => bytes / MEGABYTE / ((await timed(() => traffic(args))) / 1000);
  const rates = await interleaved(target.rounds(9, 3), {
    down: () => rate(`get ${NAME} ${web.port} ${bytes}`),
    up: () => rate(`put ${NAME} ${PEER_PORTS.sum} ${bytes}`),
    stdout: () => rate(`write ${bytes}`),
  });
  const against = { name: "the same bytes by standard output", values: rates.stdout };
  const size = `${bytes / MEGABYTE} MB`;
  yield rowOf({
    ...ENDS,
    name: `guest gets ${size} over HTTP`,
    values: rates.down,
    unit: "MB/s",
    against,
    atLeast: 1.5,
  });
  yield rowOf({ ...ENDS, name: `guest sends ${size}`, values: rates.up, unit: "MB/s", against, atLeast: 0.4 });

  const each = await interleaved(target.rounds(9, 3), {
    opens: async () =>
      OPENS_COUNT / ((await timed(() => traffic(`opens ${NAME} ${PEER_PORTS.echo} ${OPENS_COUNT}`))) / 1000),
    crowd: () => timed(() => traffic(`crowd ${NAME} ${PEER_PORTS.echo} ${CROWD_COUNT}`)),
  });
  const one = "one after the other, with a byte there and back";
  yield remarkOf("connections of a guest", figureOf(each.opens, "connections/s"), one);
  yield remarkOf(
    `${CROWD_COUNT} connections of a guest at once`,
    figureOf(each.crowd, "ms"),
    "with a byte there and back",
  );

  const short = (): Promise<number> => timed(() => exec(target, id, "true"));
  const values = await interleaved(target.rounds(25, 7), {
    alone: short,
    loaded: async () => {
      requested = Promise.withResolvers();
      const long = await appliance.post(`/instances/${id}/processes`, {
        ...{ command: PROGRAM, args: ["get", NAME, String(web.port), String(1e12)] },
      });
      const { spid } = (await long.json()) as { spid: number };
      await requested.promise;
      const durationMs = await short();
      await appliance.fetch(`/instances/${id}/processes/${spid}`, { method: "DELETE" });
      return durationMs;
    },
  });
  yield rowOf({
    ...ENDS,
    name: "true by exec, during a download of the same guest",
    values: values.loaded,
    unit: "ms",
    against: { name: "without a download", values: values.alone },
    atMost: 3,
  });
  await target.stop(id);
}
