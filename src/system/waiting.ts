/** A timer that is cleared when its scope ends. */
export function startTimer(delayMs: number): Disposable & { readonly fired: Promise<void> } {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, delayMs);
  return { fired: promise, [Symbol.dispose]: () => clearTimeout(timer) };
}

interface Waiter {
  resolve(value: unknown): void;
  reject(reason: unknown): void;
}

/** Those who wait for a promise, as long as they do. */
const waitersOf = new WeakMap<Promise<unknown>, Set<Waiter>>();

/**
 * Tells `waiter` how `work` settles, until disposal. All waiters of a promise share one reaction on it: nobody can take a
 * reaction back, and those of callers that have left would pile up on a promise that lives long.
 */
function onSettled(work: Promise<unknown>, waiter: Waiter): Disposable {
  const waiters = waitersOf.get(work) ?? watch(work);
  waiters.add(waiter);
  return { [Symbol.dispose]: () => void waiters.delete(waiter) };
}

function watch(work: Promise<unknown>): Set<Waiter> {
  const waiters = new Set<Waiter>();
  waitersOf.set(work, waiters);
  // Whoever comes later needs a reaction of his own.
  const over = (tell: (waiter: Waiter) => void): void => {
    waitersOf.delete(work);
    waiters.forEach(tell);
  };
  work.then(
    (value) => over((waiter) => waiter.resolve(value)),
    (reason: unknown) => over((waiter) => waiter.reject(reason)),
  );
  return waiters;
}

const LATE: unknown = Symbol("late");

/**
 * Settles as `work` does, or as `late` when that takes longer than `limitMs`; the work then goes on unobserved. Leaves no
 * timer behind, and nothing on the promise.
 */
export async function withinTime<T, L>(work: Promise<T>, limitMs: number, late: () => L): Promise<T | L> {
  const { promise, resolve, reject } = Promise.withResolvers<T | L>();
  using _waiter = onSettled(work, { resolve: resolve as Waiter["resolve"], reject });
  const timer = setTimeout(() => resolve(LATE as L), limitMs);
  using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
  const value = await promise;
  return value === LATE ? late() : value;
}

/**
 * Settles as `work` does, or rejects with the reason of `signal` when that comes first; the work then goes on unobserved.
 * Leaves nothing on the promise.
 */
export async function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, resolve, reject } = Promise.withResolvers<T>();
  using _waiter = onSettled(work, { resolve: resolve as Waiter["resolve"], reject });
  const onAbort = () => reject(signal.reason);
  // Work that is done already comes first.
  if (signal.aborted) queueMicrotask(onAbort);
  signal.addEventListener("abort", onAbort, { once: true });
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
  return await promise;
}

/** Resolves after `ms`, or at once when `signal` fires; leaves no timer behind. */
export async function sleepUnlessAborted(ms: number, signal: AbortSignal): Promise<void> {
  using timer = startTimer(ms);
  // The signal is one of the ends of this wait, not a failure.
  await untilAborted(timer.fired, signal).catch(() => undefined);
}

/**
 * Pause before the next attempt at something that failed so often in a row, in `milliseconds`: none after the first
 * failure, then a second, and twice as long each time, at most `maxMs`.
 */
export function retryPauseMs(failuresCount: number, maxMs: number): number {
  return failuresCount <= 1 ? 0 : Math.min(maxMs, 1000 * 2 ** (failuresCount - 2));
}
