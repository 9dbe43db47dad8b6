import { timed } from "../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import { idlePart } from "../../src/cli/bench/spawns.ts";
import type { BenchHost } from "./host.ts";

/** The daemon that has nothing to do, and how soon it is there. */
export async function* idleRows(host: BenchHost): AsyncGenerator<Finding> {
  await host.target.run(host.base, "true", { disposable: true });
  yield* idlePart(host.target);
  const starts: number[] = [];
  for (let round = 0; round < host.target.rounds(15, 5); round++) {
    starts.push(await restart(host));
    await host.target.poolFull();
  }
  yield rowOf({
    name: "start of the daemon on a data directory that it knows",
    from: "program started",
    to: "address told, socket listening",
    values: starts,
    unit: "ms",
    atMost: 80,
  });
}

/** Ends the daemon and starts it again: from the program's start until it listens, in `milliseconds`. */
export async function restart({ appliance }: BenchHost): Promise<number> {
  await appliance.down();
  const durationMs = await timed(() => appliance.up());
  // Told by the daemon itself once it listens; that it is true is seen here.
  if ((await fetch(`${appliance.url}/healthz`)).status !== 200) throw new Error("the daemon is not healthy");
  return durationMs;
}
