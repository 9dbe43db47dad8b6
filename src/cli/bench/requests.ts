import { answerOf } from "../../client/client.ts";
import { listDirectory } from "../../client/transfers.ts";
import type { Operation } from "../../client/types.ts";
import { CliError } from "../command.ts";
import { type LoadTarget, rateOf, spansAt } from "./load.ts";
import { figureOf, interleaved, median, quantile, timed } from "./measure.ts";
import { remarkOf } from "./report.ts";
import { type Finding, missing, type Row, rowOf } from "./row.ts";
import type { BenchTarget } from "./target.ts";

const LOOKS_PER_ROUND = 20;
const CONNECTIONS_COUNT = 16;
const REQUESTS_PER_SECOND = 100;
const WARM_UP_MS = 500;
const ENDS = { from: "request sent", to: "answer read", unit: "ms" };
/** Name and ends of the row of `operationRate`. */
export const OPERATION_RATE = {
  name: "GET of an operation",
  from: `request sent, ${CONNECTIONS_COUNT} connections`,
  to: ENDS.to,
  unit: "/s",
} as const;

/** Reads of an image without a machine, and of a listing. */
export async function* looksPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client, image } = target;
  const { signal } = target.options;
  const query = { path: "/bin/sh" };
  const values = await interleaved(target.rounds(25, 5) * LOOKS_PER_ROUND, {
    list: () => timed(() => listDirectory(client, { image, path: "/", signal })),
    stat: () => timed(() => client.call("HEAD", `/inspect/${image}/`, { query, signal })),
    operations: () => timed(() => answerOf(client.v1.operations.get({ query: { limit: 100 }, fetch: { signal } }))),
  });
  const ends = `from ${ENDS.from} to ${ENDS.to}`;
  yield remarkOf("list the root of the image", figureOf(values.list, "ms"), ends);
  yield remarkOf("stat a path in the image", figureOf(values.stat, "ms"), ends);
  yield remarkOf("list the newest 100 operations", figureOf(values.operations, "ms"), ends);
}

/** GET of an operation: the rate, and the latency while machines compute. */
export async function* ratesPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { name, from, to, unit } = OPERATION_RATE;
  if (!isPlain(target)) return void (yield missing(name, "the load is made over plain HTTP only"));
  const { load } = await operationLoad(target);
  await warmUp(load);
  const rate = operationRate(target, load);
  const values = await interleaved(target.rounds(7, 3), { ours: () => rate.measure() });
  yield remarkOf(name, figureOf(values.ours, unit), `from ${from} to ${to}${rate.note === "" ? "" : `; ${rate.note}`}`);
  yield await latencyUnderLoad(target, load);
}

/** False for an appliance behind TLS, which the client of the load does not speak. */
function isPlain({ client }: BenchTarget): boolean {
  return client.target("").url.startsWith("http://");
}

/** The GET of an operation that has ended, and what it answers. */
export async function operationLoad(target: BenchTarget): Promise<{ load: LoadTarget; operation: Operation }> {
  const { client, image } = target;
  await target.run(image, "true", { disposable: true });
  const [newest] = await answerOf(client.v1.operations.get({ query: { limit: 1, kind: "instance" } }));
  if (newest === undefined) throw new CliError("the operation that has just ended is not listed");
  const operation = await answerOf(client.v1.operations({ id: newest.id }).get());
  return { load: client.target(`/operations/${newest.id}`), operation };
}

/** Answers a second to as many connections as the row has. */
export async function answerRate(load: LoadTarget, durationMs: number): Promise<number> {
  return await rateOf(load, CONNECTIONS_COUNT, durationMs);
}

/** The same for the appliance, with the CPU time of an answer. */
export function operationRate(target: BenchTarget, load: LoadTarget) {
  const cpuUs: number[] = [];
  const durationMs = rateMs(target);
  return {
    async measure(): Promise<number> {
      const [startedAt, before] = [performance.now(), await target.cpuTimeUs()];
      const perSecond = await answerRate(load, durationMs);
      const after = await target.cpuTimeUs();
      const answers = perSecond * ((performance.now() - startedAt) / 1000);
      if (before !== null && after !== null) cpuUs.push((after - before) / answers);
      return perSecond;
    },
    /** CPU time hardly depends on other load of the machine. */
    get note(): string {
      return cpuUs.length === 0 ? "" : `an answer takes ${median(cpuUs).toFixed(1)} us of CPU time`;
    },
  };
}

/** Lets the code of a server become warm. */
export async function warmUp(load: LoadTarget): Promise<void> {
  await answerRate(load, WARM_UP_MS);
}

/** Duration of the measurement of one rate, in `milliseconds`. */
export function rateMs({ options }: BenchTarget): number {
  return options.quick ? 1000 : 3000;
}

/** Latency of answers while machines compute, against an idle appliance. */
export async function latencyUnderLoad(target: BenchTarget, load: LoadTarget): Promise<Row> {
  const spans = target.options.quick ? { count: 5, durationMs: 2000 } : { count: 7, durationMs: 3000 };
  await target.poolFull();
  const alone = await spansAt(load, REQUESTS_PER_SECOND, spans);
  const busy: string[] = [];
  for (let n = 0; n < 2; n++) {
    busy.push(await target.start(target.image, "while :; do :; done", { timeout: 600, disposable: true }));
  }
  for (const id of busy) await target.untilRunning(id);
  // The pool replaces the two machines meanwhile, as it does for every client.
  const late = await spansAt(load, REQUESTS_PER_SECOND, spans);
  for (const id of busy) await target.stop(id);
  const p99 = (of: readonly number[][]) => of.map((span) => quantile(span, 0.99));
  return rowOf({
    ...ENDS,
    name: "GET of an operation, p99 at 100/s with 2 busy VMs",
    values: p99(late),
    against: { name: "p99 without the VMs", values: p99(alone) },
    atMost: 2,
    note: `median ${quantile(late.flat(), 0.5).toFixed(2)} ms of ${late.flat().length}`,
  });
}
