import { dlopen, FFIType, ptr } from "bun:ffi";
import { setImmediate } from "node:timers/promises";

/** The longest turn of the event loop during a piece of work. */
export interface LongestTurn {
  /** processor time of this thread, in `milliseconds` */
  readonly cpuMs: number;
  /** until the work was done, in `milliseconds` */
  readonly elapsedMs: number;
  /** the error of the work; null when it succeeded */
  readonly failure: unknown;
}

/** Runs `work` and measures every turn of the event loop until it is done; the first turn is the call itself. */
export async function longestTurn(work: () => unknown): Promise<LongestTurn> {
  const startedAt = performance.now();
  let isDone = false;
  let longest = 0;
  let last = threadCpuMs();
  const look = () => {
    const now = threadCpuMs();
    longest = Math.max(longest, now - last);
    last = now;
  };
  const failed = (async () => {
    try {
      await work();
      return null;
    } catch (error) {
      return error;
    }
  })().then((failure) => {
    isDone = true;
    return failure;
  });
  look();
  while (!isDone) {
    await setImmediate();
    look();
  }
  return { cpuMs: longest, elapsedMs: performance.now() - startedAt, failure: await failed };
}

const { symbols: libc } = dlopen("libc.so.6", {
  clock_gettime: { args: [FFIType.i32, FFIType.ptr], returns: FFIType.i32 },
});
const CLOCK_THREAD_CPUTIME_ID = 3;
const time = new BigInt64Array(2);

/** Reads the one exact clock: `getrusage` and `/proc` have the resolution of the kernel's tick. */
function threadCpuMs(): number {
  if (libc.clock_gettime(CLOCK_THREAD_CPUTIME_ID, ptr(time)) !== 0) throw new Error("clock_gettime failed");
  return Number(time[0]) * 1000 + Number(time[1]) / 1e6;
}
