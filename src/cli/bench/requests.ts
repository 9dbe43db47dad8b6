import { answerOf } from "../../client/client.ts";
import { listDirectory } from "../../client/transfers.ts";
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

/** Looking into an image without a machine, and at what there is. */
export async function* looksPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client, image } = target;
  const { signal } = target.options;
  const query = { path: "/bin/sh" };
  const values = await interleaved(target.rounds(25, 5) * LOOKS_PER_ROUND, {
    list: () => timed(() => listDirectory(client, { image, path: "/", signal })),
    stat: () => timed(() => client.call("HEAD", `/inspect/${image}/`, { query, signal })),
    operations: () => timed(() => answerOf(client.v1.operations.get({ query: { limit: 100 }, fetch: { signal } }))),
  });
  yield rowOf({ ...ENDS, name: "list the root of the image", values: values.list, atMost: 1 });
  yield rowOf({ ...ENDS, name: "stat a path in the image", values: values.stat, atMost: 1 });
  const ends = `from ${ENDS.from} to ${ENDS.to}`;
  yield remarkOf("list the newest 100 operations", figureOf(values.operations, "ms"), ends);
}

/** GET of an operation: how many, and how late while machines compute. */
export async function* ratesPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client, image, options } = target;
  await target.run(image, "true", { disposable: true });
  const [newest] = await answerOf(client.v1.operations.get({ query: { limit: 1, kind: "instance" } }));
  const id = newest?.id ?? "";
  const ours: LoadTarget = client.target(`/operations/${id}`);
  const name = "GET of an operation";
  if (!ours.url.startsWith("http://")) return void (yield missing(name, "the load is made over plain HTTP only"));
  const from = `request sent, ${CONNECTIONS_COUNT} connections`;
  const operation = await answerOf(client.v1.operations({ id }).get());
  using peer = await target.comparison((local) => local.startRoutePeer(options.config, operation));
  await rateOf(ours, CONNECTIONS_COUNT, WARM_UP_MS);
  await target.poolFull();
  const durationMs = options.quick ? 1000 : 3000;
  const cpuUs: number[] = [];
  const rate = (of: LoadTarget) => rateOf(of, CONNECTIONS_COUNT, durationMs);
  const ourRate = async (): Promise<number> => {
    const [startedAt, before] = [performance.now(), await target.cpuTimeUs()];
    const perSecond = await rate(ours);
    const after = await target.cpuTimeUs();
    const answers = perSecond * ((performance.now() - startedAt) / 1000);
    if (before !== null && after !== null) cpuUs.push((after - before) / answers);
    return perSecond;
  };
  const rounds = target.rounds(7, 3);
  if ("problem" in peer) {
    const values = await interleaved(rounds, { ours: ourRate });
    yield remarkOf(name, figureOf(values.ours, "/s"), `from ${from} to ${ENDS.to}`);
    yield missing(`${name}, against a bare Elysia route`, peer.problem);
  } else {
    const theirs = { ...ours, url: new URL(new URL(ours.url).pathname, peer.url).href };
    await rateOf(theirs, CONNECTIONS_COUNT, WARM_UP_MS);
    const values = await interleaved(rounds, { ours: ourRate, theirs: () => rate(theirs) });
    const against = { name: "bare Elysia route, same tokens and schema", values: values.theirs };
    // The time of a processor does not depend on what else the machine does.
    const note = cpuUs.length === 0 ? {} : { note: `an answer takes ${median(cpuUs).toFixed(1)} us of a processor` };
    yield rowOf({ name, from, to: ENDS.to, values: values.ours, unit: "/s", against, atLeast: 0.7, ...note });
  }
  yield await besideMachines(target, ours);
}

async function besideMachines(target: BenchTarget, ours: LoadTarget): Promise<Row> {
  const spans = target.options.quick ? { count: 5, durationMs: 2000 } : { count: 7, durationMs: 3000 };
  await target.poolFull();
  const alone = (await spansAt(ours, REQUESTS_PER_SECOND, spans)).flat();
  const busy: string[] = [];
  for (let n = 0; n < 2; n++) {
    busy.push(await target.start(target.image, "while :; do :; done", { timeout: 600, disposable: true }));
  }
  for (const id of busy) await target.untilRunning(id);
  // The pool replaces the two machines meanwhile, as it does for every client.
  const late = await spansAt(ours, REQUESTS_PER_SECOND, spans);
  for (const id of busy) await target.stop(id);
  const [middle, quiet] = [quantile(late.flat(), 0.5), quantile(alone, 0.99)].map((ms) => ms.toFixed(2));
  return rowOf({
    ...ENDS,
    name: "GET of an operation, p99 at 100/s beside 2 busy VMs",
    values: late.map((span) => quantile(span, 0.99)),
    atMost: 5,
    note: `median ${middle} ms of ${late.flat().length}; without the VMs p99 ${quiet} ms`,
  });
}
