import type { Log } from "../../log.ts";
import { writeFileAtomic } from "../../system/scratch.ts";
import type { Pool } from "../../vm/pool.ts";

/** Name of the file in the data directory that has the last `IdleCost`, as JSON. */
export const IDLE_COST_NAME = "idle-cost.json";

/** Interval between measurements, and the duration of each. */
const INTERVAL_MS = 60_000;
const MEASURE_MS = 10_000;

/** Average cost of a machine that waits in the pool; `doctor` shows it. */
export interface IdleCost {
  /** `milliseconds` since the epoch */
  readonly at: number;
  /** number of machines */
  readonly count: number;
  /** of each machine, in `bytes` */
  readonly memoryBytes: number;
  /** of each machine, in percent of one CPU */
  readonly cpuPercent: number;
}

/** Measures the cost of the idle pool every minute, and writes the latest figures to `path`, until it is disposed. */
export function watchIdleCost(options: { readonly pool: Pool; readonly path: string; readonly log: Log }): Disposable {
  const { pool, path, log } = options;
  const closing = new AbortController();
  const measure = async (): Promise<void> => {
    const cost = await idleCost(pool, MEASURE_MS);
    if (cost !== null && !closing.signal.aborted) await writeFileAtomic(path, `${JSON.stringify(cost)}\n`);
  };
  // A machine may be taken while it is measured; the next measurement comes soon.
  const tick = () => void measure().catch((error: unknown) => log.debug("cannot measure the idle cost", { error }));
  const timer = setInterval(tick, INTERVAL_MS);
  timer.unref();
  return {
    [Symbol.dispose]: () => {
      closing.abort();
      clearInterval(timer);
    },
  };
}

/** Measures for `overMs`. Null when no machine waits, or the machines in the pool changed meanwhile. */
export async function idleCost(pool: Pick<Pool, "usage" | "readyCount" | "waitingCount">, overMs: number) {
  const before = await pool.usage();
  const isReady = () => pool.readyCount === pool.waitingCount;
  if (before.size === 0 || !isReady()) return null;
  const startedAt = performance.now();
  await Bun.sleep(overMs);
  const elapsedMs = performance.now() - startedAt;
  const after = await pool.usage();
  const same = after.size === before.size && [...after.keys()].every((id) => before.has(id));
  if (!same || !isReady()) return null;
  let cpuMs = 0;
  let memoryBytes = 0;
  for (const [id, stats] of after) {
    cpuMs += stats.cpuTimeMs - (before.get(id)?.cpuTimeMs ?? 0);
    memoryBytes += stats.memoryBytes;
  }
  const count = after.size;
  const cpuPercent = Math.round((cpuMs / elapsedMs / count) * 1000) / 10;
  return { at: Date.now(), count, memoryBytes: Math.round(memoryBytes / count), cpuPercent } satisfies IdleCost;
}
