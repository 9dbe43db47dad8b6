import { figureOf, interleaved, median, timed } from "./measure.ts";
import { phaseMeans, remarkOf } from "./report.ts";
import { type Finding, missing, type Row, rowOf } from "./row.ts";
import type { BenchTarget } from "./target.ts";

const CHANGE = "echo changed > /root/coppice-bench";
const IDLE_MS = 2000;
const SETTLE_MS_MAX = 300_000;
const BURST_TAIL_COUNT = 10;
/** The two end points of a spawn. */
export const ENDS = { from: "POST /v1/instances, sent", to: "GET /v1/operations/{id}?wait, SUCCESS read", unit: "ms" };

const IDLE_ENDS = { from: "pool full", to: "seconds later, as /metrics has it" };

/** The idle daemon. @param history its earlier work */
export async function* idlePart(target: BenchTarget, history = "as the appliance was before"): AsyncGenerator<Finding> {
  await target.poolFull();
  const name = "idle daemon";
  const resident: number[] = [];
  for (let n = 0; n < target.rounds(5, 3); n++) {
    await Bun.sleep(IDLE_MS);
    const mib = await target.residentMib();
    if (mib !== null) resident.push(mib);
  }
  if (resident.length === 0) return void (yield missing(name, "the appliance does not show /metrics"));
  yield rowOf({ ...IDLE_ENDS, name, values: resident, unit: "MiB RSS", atMost: 70, note: history });
  yield* connectingPart(target);
}

/** The process that connects to the outside. It ends some minutes after the last connection; then the row is missing. */
export async function* connectingPart(target: BenchTarget): AsyncGenerator<Finding> {
  const mib = await target.gateMib();
  const name = "process that connects to the outside, with the idle daemon";
  if (mib !== null) yield rowOf({ ...IDLE_ENDS, name, values: [mib], unit: "MiB RSS", atMost: 40 });
}

/** A warm disposable spawn, and a captured one; each returns `milliseconds`. */
export function spawnSubjects(target: BenchTarget) {
  return {
    disposable: () => target.spawn(target.image, "true", { disposable: true }),
    kept: () => target.spawn(target.image, CHANGE),
  };
}

export const SPAWN_NAMES = {
  disposable: "warm spawn of true, disposable",
  kept: "warm spawn that changes a file, captured",
} as const;

/** Duration of warm spawns. */
export async function* spawnPart(target: BenchTarget): AsyncGenerator<Finding> {
  await target.run(target.image, "true", { disposable: true });
  const before = await target.client.metrics();
  const values = await interleaved(target.rounds(25, 7), spawnSubjects(target));
  for (const name of ["disposable", "kept"] as const) {
    yield remarkOf(SPAWN_NAMES[name], figureOf(values[name], ENDS.unit), `from ${ENDS.from} to ${ENDS.to}`);
  }
  yield* stepsOf(before, await target.client.metrics());
  await target.deleteMade();
}

/** The steps of the spawns between two looks at /metrics, where the appliance shows them. */
export function* stepsOf(before: string, after: string): Generator<Finding> {
  const phases = phaseMeans(before, after);
  if (phases !== "") yield { name: "steps of these spawns, mean ms", text: phases };
}

/** The same change on an image, and on a much larger one. */
export async function captureRow(
  target: BenchTarget,
  { name, large, small }: { readonly name: string; readonly large: string; readonly small: NamedImage },
): Promise<Row> {
  const values = await interleaved(target.rounds(15, 5), {
    large: () => target.spawn(large, CHANGE),
    small: () => target.spawn(small.image, CHANGE),
  });
  const against = { name: `the same above ${small.name}`, values: values.small };
  return rowOf({ ...ENDS, name, values: values.large, against, atMost: 1.1 });
}

export interface NamedImage {
  readonly name: string;
  readonly image: string;
}

/** A chain of runs, each on the image of the one before. */
export async function* chainPart(target: BenchTarget): AsyncGenerator<Finding> {
  const depth = target.options.quick ? 40 : 200;
  const step = async (from: string, n: number) => (await target.run(from, `echo ${n} > /root/step-${n}`)).image ?? "";
  const first = await step(target.image, 0);
  let image = first;
  const burst: number[] = [];
  for (let n = 1; n < depth; n++) {
    burst.push(
      await timed(async () => {
        image = await step(image, n);
      }),
    );
  }
  // At once, before the merging of layers can catch up.
  const shallow: number[] = [];
  for (let n = 0; n < BURST_TAIL_COUNT; n++) shallow.push(await timed(() => target.run(first, CHANGE)));
  yield rowOf({
    ...ENDS,
    name: `spawn at the end of a chain of ${depth}, in the burst`,
    values: burst.slice(-BURST_TAIL_COUNT),
    against: { name: "at depth 1, as fast after each other", values: shallow },
    atMost: 1.8,
    note: `the first ten took ${median(burst.slice(0, BURST_TAIL_COUNT)).toFixed(0)} ms`,
  });
  await target.settled(SETTLE_MS_MAX);
  const values = await interleaved(target.rounds(15, 5), {
    deep: () => target.spawn(image, CHANGE),
    shallow: () => target.spawn(first, CHANGE),
  });
  const against = { name: "at depth 1", values: values.shallow };
  const name = `spawn at the end of a chain of ${depth}, settled`;
  yield rowOf({ ...ENDS, name, values: values.deep, against, atMost: 1.15 });
  await target.deleteMade();
}
