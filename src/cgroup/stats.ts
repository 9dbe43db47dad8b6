/** Resource usage of a cgroup up to now. */
export interface CgroupStats {
  readonly cpuTimeMs: number;
  readonly memoryBytes: number;
  readonly memoryPeakBytes: number;
  /** the part of the memory that caches files of the host, which it gives back when memory is short */
  readonly cacheBytes: number;
  readonly pids: number;
}

/** A reading with its time and the processor usage since the previous reading. */
export interface CgroupSample extends CgroupStats {
  /** `milliseconds` since the epoch */
  readonly at: number;
  /** processor usage since the previous sample, in per cent of one processor; 0 in the first */
  readonly cpuPercent: number;
}

/** The cgroup was removed: its machine has ended. */
export class CgroupGoneError extends Error {
  override readonly name = "CgroupGoneError";
}

/** The number in a file; null when there is none. Counters above 2^53 lose their last digits, which does not matter. */
export function parseNumber(text: string | null): number | null {
  const trimmed = text?.trim() ?? "";
  return /^\d+$/.test(trimmed) ? Number(trimmed) : null;
}

/** The value of `key` in a file of `key value` lines. */
export function parseKeyed(text: string | null, key: string): number | null {
  const line = text?.split("\n").find((candidate) => candidate.startsWith(`${key} `));
  return line === undefined ? null : parseNumber(line.slice(key.length + 1));
}

/** Reads the usage of a cgroup. `read` returns the text of a file in whichever hierarchy has it, or null. */
export function readStats(read: (file: string) => string | null): CgroupStats {
  const cpuacctNs = parseNumber(read("cpuacct.usage"));
  const cpuUs = cpuacctNs === null ? parseKeyed(read("cpu.stat"), "usage_usec") : cpuacctNs / 1000;
  const memoryBytes = parseNumber(read("memory.usage_in_bytes")) ?? parseNumber(read("memory.current")) ?? 0;
  const peakBytes = parseNumber(read("memory.max_usage_in_bytes")) ?? parseNumber(read("memory.peak"));
  const memory = read("memory.stat");
  // Both versions count shared memory, such as that of a guest, as cache of files.
  const fileBytes = parseKeyed(memory, "file") ?? parseKeyed(memory, "cache") ?? 0;
  return {
    cpuTimeMs: Math.round((cpuUs ?? 0) / 1000),
    memoryBytes,
    // Older kernels with cgroup v2 have no memory.peak.
    memoryPeakBytes: peakBytes ?? memoryBytes,
    cacheBytes: Math.max(0, fileBytes - (parseKeyed(memory, "shmem") ?? 0)),
    pids: parseNumber(read("pids.current")) ?? 0,
  };
}

/** Reads `source` at once and then every `intervalMs`, until `signal` aborts or the cgroup is removed. */
export async function* samples(
  source: { stats(): Promise<CgroupStats> },
  intervalMs: number,
  signal: AbortSignal,
): AsyncGenerator<CgroupSample> {
  let before: CgroupSample | null = null;
  while (!signal.aborted) {
    const stats = await statsUnlessGone(source);
    if (stats === null) return;
    const at = Date.now();
    const elapsedMs: number = before === null ? 0 : at - before.at;
    const usedMs: number = before === null ? 0 : stats.cpuTimeMs - before.cpuTimeMs;
    const sample: CgroupSample = { ...stats, at, cpuPercent: elapsedMs > 0 ? (100 * usedMs) / elapsedMs : 0 };
    yield sample;
    before = sample;
    await pause(intervalMs, signal);
  }
}

async function statsUnlessGone(source: { stats(): Promise<CgroupStats> }): Promise<CgroupStats | null> {
  try {
    return await source.stats();
  } catch (error) {
    // CgroupGoneError: the machine ended between two readings.
    if (error instanceof CgroupGoneError) return null;
    throw error;
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(end, ms);
    function end(): void {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    }
    signal.addEventListener("abort", end);
  });
}
