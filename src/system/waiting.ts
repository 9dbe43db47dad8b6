/** A timer that its disposal clears. */
export function startTimer(delayMs: number): Disposable & { readonly fired: Promise<void> } {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, delayMs);
  return { fired: promise, [Symbol.dispose]: () => clearTimeout(timer) };
}

interface Waiter {
  resolve(value: unknown): void;
  reject(reason: unknown): void;
}

/** The present waiters of each promise. */
const waitersOf = new WeakMap<Promise<unknown>, Set<Waiter>>();

/**
 * Calls `waiter` when `work` settles, until disposal. All waiters of a promise share one reaction on it: reactions cannot
 * be removed, so those of callers that have left would pile up on a long-lived promise.
 */
function onSettled(work: Promise<unknown>, waiter: Waiter): Disposable {
  const waiters = waitersOf.get(work) ?? watch(work);
  waiters.add(waiter);
  return { [Symbol.dispose]: () => void waiters.delete(waiter) };
}

function watch(work: Promise<unknown>): Set<Waiter> {
  const waiters = new Set<Waiter>();
  waitersOf.set(work, waiters);
  // A waiter that comes after this needs a new reaction.
  const settle = (tell: (waiter: Waiter) => void): void => {
    waitersOf.delete(work);
    waiters.forEach(tell);
  };
  work.then(
    (value) => settle((waiter) => waiter.resolve(value)),
    (reason: unknown) => settle((waiter) => waiter.reject(reason)),
  );
  return waiters;
}

const TIMED_OUT: unknown = Symbol("timed out");

/**
 * Settles like `work`, or with the result of `onTimeout` when that takes longer than `limitMs`. The work then continues
 * unobserved. Leaves neither a timer nor a reaction on the promise behind.
 */
export async function withinTime<T, L>(work: Promise<T>, limitMs: number, onTimeout: () => L): Promise<T | L> {
  const { promise, resolve, reject } = Promise.withResolvers<T | L>();
  using _waiter = onSettled(work, { resolve: resolve as Waiter["resolve"], reject });
  const timer = setTimeout(() => resolve(TIMED_OUT as L), limitMs);
  using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
  const value = await promise;
  return value === TIMED_OUT ? onTimeout() : value;
}

/**
 * Settles like `work`, or rejects with the reason of `signal` when that aborts first. The work then continues unobserved.
 * Leaves no reaction on the promise behind.
 */
export async function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, resolve, reject } = Promise.withResolvers<T>();
  using _waiter = onSettled(work, { resolve: resolve as Waiter["resolve"], reject });
  const onAbort = () => reject(signal.reason);
  // Work that has settled already takes precedence.
  if (signal.aborted) queueMicrotask(onAbort);
  signal.addEventListener("abort", onAbort, { once: true });
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
  return await promise;
}

/** Resolves after `ms`, or at once when `signal` aborts. Leaves no timer behind. */
export async function sleepUnlessAborted(ms: number, signal: AbortSignal): Promise<void> {
  using timer = startTimer(ms);
  // An abort is a normal end of this wait.
  await untilAborted(timer.fired, signal).catch(() => undefined);
}

/**
 * Pause before the next attempt after `failuresCount` failures in a row, in `milliseconds`: none after the first, a second
 * after the next, then doubling up to `maxMs`.
 */
export function retryPauseMs(failuresCount: number, maxMs: number): number {
  return failuresCount <= 1 ? 0 : Math.min(maxMs, 1000 * 2 ** (failuresCount - 2));
}
