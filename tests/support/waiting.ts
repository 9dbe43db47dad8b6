import { setImmediate } from "node:timers/promises";

/** The only waits of the tests: every other place awaits what it waits for. */

const POLL_MS_MIN = 1;
const POLL_MS_MAX = 50;

/** Waits until a condition holds of which nothing tells. @throws Error when it does not hold in time */
export async function until(what: string, holds: () => Promise<boolean> | boolean, limitMs = 30_000): Promise<void> {
  const endsAt = performance.now() + limitMs;
  for (let pollMs = POLL_MS_MIN; !(await holds()); pollMs = Math.min(2 * pollMs, POLL_MS_MAX)) {
    if (performance.now() > endsAt) throw new Error(`in ${limitMs} ms it did not happen: ${what}`);
    await Bun.sleep(pollMs);
  }
}

/** Lets time pass where a test needs just that. */
export async function pause(_why: string, milliseconds: number): Promise<void> {
  await Bun.sleep(milliseconds);
}

/** Does `late` after so many milliseconds, unless it is disposed of before. It keeps no process alive. */
export function deadline(milliseconds: number, late: () => void): Disposable {
  const timer = setTimeout(late, milliseconds);
  timer.unref();
  return { [Symbol.dispose]: () => clearTimeout(timer) };
}

/** Lets the event loop turn so often: what needs no time, and nobody else, has happened then. */
export async function turns(count = 10): Promise<void> {
  for (let turn = 0; turn < count; turn++) await setImmediate();
}
