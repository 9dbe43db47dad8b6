import type { ImageId } from "../../domain/ids.ts";
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

/** The daemon that has nothing to do. */
export async function* idlePart(target: BenchTarget): AsyncGenerator<Finding> {
  await target.poolFull();
  const name = "idle daemon";
  const resident: number[] = [];
  const connecting: number[] = [];
  for (let n = 0; n < target.rounds(5, 3); n++) {
    await Bun.sleep(IDLE_MS);
    const mib = await target.residentMib();
    if (mib !== null) resident.push(mib);
    const gateMib = await target.gateMib();
    if (gateMib !== null) connecting.push(gateMib);
  }
  if (resident.length === 0) return void (yield missing(name, "the appliance does not show /metrics"));
  const ends = { from: "pool full", to: "seconds later, as /metrics has it" };
  yield rowOf({ ...ends, name, values: resident, unit: "MiB RSS", atMost: 80 });
  // It ends some minutes after the last connection.
  const more = "process that connects to the outside, beside the idle daemon";
  if (connecting.length > 0) yield rowOf({ ...ends, name: more, values: connecting, unit: "MiB RSS", atMost: 40 });
}

/** A warm spawn of `true`, kept and not, against a cold boot of bare QEMU where that can be had. */
export async function* spawnPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client, image, options } = target;
  const names = { disposable: "warm spawn of true, disposable", kept: "warm spawn that changes a file, captured" };
  const { isolation } = await target.run(image, "true", { disposable: true });
  const acceleration = isolation === "vm" ? "kvm" : "tcg";
  await using cold = await target.comparison((local) =>
    local.openColdBoot(options.config, image as ImageId, acceleration),
  );
  const before = await client.metrics();
  const subjects = {
    disposable: () => target.spawn(image, "true", { disposable: true }),
    kept: () => target.spawn(image, CHANGE),
  };
  const rounds = target.rounds(25, 7);
  if ("problem" in cold) {
    const values = await interleaved(rounds, subjects);
    for (const name of ["disposable", "kept"] as const) {
      yield remarkOf(names[name], figureOf(values[name], ENDS.unit), `from ${ENDS.from} to ${ENDS.to}`);
      yield missing(`${names[name]}, against a cold boot of bare QEMU`, cold.problem);
    }
  } else {
    const boot = () => cold.measure(["/bin/sh", "-c", "true"]);
    const values = await interleaved(rounds, { cold: boot, ...subjects });
    const against = { name: "cold boot of bare QEMU, same kernel, disks and command", values: values.cold };
    const bars = { disposable: 0.08, kept: 0.12 };
    for (const name of ["disposable", "kept"] as const) {
      yield rowOf({ ...ENDS, name: names[name], values: values[name], against, atMost: bars[name] });
    }
  }
  const phases = phaseMeans(before, await client.metrics());
  if (phases !== "") yield { name: "steps of these spawns, mean ms", text: phases };
  await target.deleteMade();
}

/** The same change on an image, and on one that is much larger. */
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
    atMost: 2,
    note: `the first ten took ${median(burst.slice(0, BURST_TAIL_COUNT)).toFixed(0)} ms`,
  });
  await target.settled(SETTLE_MS_MAX);
  const values = await interleaved(target.rounds(15, 5), {
    deep: () => target.spawn(image, CHANGE),
    shallow: () => target.spawn(first, CHANGE),
  });
  const against = { name: "at depth 1", values: values.shallow };
  const name = `spawn at the end of a chain of ${depth}, settled`;
  yield rowOf({ ...ENDS, name, values: values.deep, against, atMost: 1.2 });
  await target.deleteMade();
}
