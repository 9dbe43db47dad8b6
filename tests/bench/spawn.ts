import { interleaved } from "../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import { ENDS, SPAWN_NAMES, spawnSubjects, stepsOf } from "../../src/cli/bench/spawns.ts";
import type { BenchHost } from "./host.ts";
import { openColdBoot } from "./peers/bare-machines.ts";

const BARS = { disposable: 0.06, kept: 0.09 } as const;

/** A warm spawn of `true`, kept and not, against a cold boot by bare QEMU. */
export async function* spawnRows(host: BenchHost): AsyncGenerator<Finding> {
  const { target } = host;
  await using cold = await openColdBoot(host);
  const before = await target.client.metrics();
  const boot = () => cold.measure(["/bin/sh", "-c", "true"]);
  const values = await interleaved(target.rounds(25, 7), { cold: boot, ...spawnSubjects(target) });
  const against = { name: "cold boot of bare QEMU, same kernel, disks and command", values: values.cold };
  for (const name of ["disposable", "kept"] as const) {
    yield rowOf({ ...ENDS, name: SPAWN_NAMES[name], values: values[name], against, atMost: BARS[name] });
  }
  yield* stepsOf(before, await target.client.metrics());
  await target.deleteMade();
}
