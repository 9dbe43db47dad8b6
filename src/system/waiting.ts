/** A timer that is cleared when its scope ends. */
export function startTimer(delayMs: number): Disposable & { readonly fired: Promise<void> } {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, delayMs);
  return { fired: promise, [Symbol.dispose]: () => clearTimeout(timer) };
}

/**
 * Settles as `work` does, or as `late` when that takes longer than `limitMs`; the work then goes on unobserved. Leaves no
 * timer behind.
 */
export async function withinTime<T, L>(work: Promise<T>, limitMs: number, late: () => L): Promise<T | L> {
  using timer = startTimer(limitMs);
  return await Promise.race([work, timer.fired.then(late)]);
}

/** Settles as `work` does, or rejects with the reason of `signal` when that comes first; the work then goes on unobserved. */
export async function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(signal.reason);
  if (signal.aborted) onAbort();
  signal.addEventListener("abort", onAbort, { once: true });
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
  return await Promise.race([work, aborted]);
}

let lastTurn = Promise.resolve();

/**
 * Resolves in a turn of the event loop of its own, in the order of the calls: for what blocks for a while, such as a
 * transaction, when much of it may become due at once.
 */
export function ownTurn(): Promise<void> {
  lastTurn = lastTurn.then(() => new Promise((resolve) => void setImmediate(resolve)));
  return lastTurn;
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
