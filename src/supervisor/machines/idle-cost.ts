import type { Log } from "../../log.ts";
import { writeFileAtomic } from "../../system/scratch.ts";
import type { Pool } from "../../vm/pool.ts";

/** How often the cost is looked for, and over how long it is measured. */
const INTERVAL_MS = 60_000;
const MEASURE_MS = 10_000;

/** Of machines that wait in the pool and do nothing, on average; for `doctor`. */
export interface IdleCost {
  /** `milliseconds` since the epoch */
  readonly at: number;
  readonly count: number;
  /** of each, in `bytes` */
  readonly memoryBytes: number;
  /** of each, in percent of one CPU */
  readonly cpuPercent: number;
}

/** Measures now and then what the pool costs while nobody uses it, and leaves the last figures at `path`. */
export function watchIdleCost(options: { readonly pool: Pool; readonly path: string; readonly log: Log }): Disposable {
  const { pool, path, log } = options;
  const closing = new AbortController();
  const look = async (): Promise<void> => {
    const cost = await idleCost(pool, MEASURE_MS);
    if (cost !== null && !closing.signal.aborted) await writeFileAtomic(path, `${JSON.stringify(cost)}\n`);
  };
  // A machine may be taken and gone while it is looked at; the next look comes soon.
  const tick = () => void look().catch((error: unknown) => log.debug("the idle cost was not measured", { error }));
  const timer = setInterval(tick, INTERVAL_MS);
  timer.unref();
  return {
    [Symbol.dispose]: () => {
      closing.abort();
      clearInterval(timer);
    },
  };
}

/** Null when nothing waits, or when the pool did not rest meanwhile. */
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
