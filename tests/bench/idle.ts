import { rowOf, timed } from "../../src/cli/bench/figures.ts";
import { pause } from "../support/waiting.ts";
import type { BenchHost } from "./host.ts";
import type { Finding } from "./part.ts";
import { residentMib } from "./transfer.ts";

const IDLE_MS = 2000;

/** The daemon that has nothing to do, and how soon it is there. */
export async function* idleRows(host: BenchHost): AsyncGenerator<Finding> {
  const { appliance } = host;
  await host.run(host.base, "true", { disposable: true });
  await host.warm();
  const resident: number[] = [];
  for (let n = 0; n < host.rounds(5, 3); n++) {
    await pause("the daemon is idle", IDLE_MS);
    resident.push(residentMib(appliance.pid));
  }
  yield rowOf({
    name: "idle daemon",
    from: "pool full",
    to: "seconds later",
    values: resident,
    unit: "MiB RSS",
    atMost: 90,
  });
  const starts: number[] = [];
  for (let round = 0; round < host.rounds(15, 5); round++) {
    starts.push(await restart(host));
    await host.warm();
  }
  yield rowOf({
    name: "start of the daemon on a data directory that it knows",
    from: "program started",
    to: "address told, socket listening",
    values: starts,
    unit: "ms",
    atMost: 100,
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
