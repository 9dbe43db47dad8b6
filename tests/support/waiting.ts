import { setImmediate } from "node:timers/promises";

/** The only timed waits of the tests; everything else awaits an event. */

const POLL_MS_MIN = 1;
const POLL_MS_MAX = 50;

/** Waits until a condition holds of which no event tells. @throws Error when it does not hold in time */
export async function until(what: string, holds: () => Promise<boolean> | boolean, limitMs = 30_000): Promise<void> {
  const endsAt = performance.now() + limitMs;
  for (let pollMs = POLL_MS_MIN; !(await holds()); pollMs = Math.min(2 * pollMs, POLL_MS_MAX)) {
    if (performance.now() > endsAt) throw new Error(`in ${limitMs} ms it did not happen: ${what}`);
    await Bun.sleep(pollMs);
  }
}

/** Lets time pass; `why` says what for. */
export async function pause(_why: string, milliseconds: number): Promise<void> {
  await Bun.sleep(milliseconds);
}

/** Calls `late` after that many milliseconds, unless it is disposed of before. Does not keep the process alive. */
export function deadline(milliseconds: number, late: () => void): Disposable {
  const timer = setTimeout(late, milliseconds);
  timer.unref();
  return { [Symbol.dispose]: () => clearTimeout(timer) };
}

/** Lets the event loop turn that often, so that callbacks that are ready have run. */
export async function turns(count = 10): Promise<void> {
  for (let turn = 0; turn < count; turn++) await setImmediate();
}
