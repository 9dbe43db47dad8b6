/** The promise, or the reason of `signal` when that comes first; the promise then goes on unobserved. */
export async function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  promise.catch(() => undefined);
  const aborted = Promise.withResolvers<never>();
  aborted.promise.catch(() => undefined);
  const onAbort = () => aborted.reject(signal.reason);
  if (signal.aborted) onAbort();
  signal.addEventListener("abort", onAbort);
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
  return await Promise.race([promise, aborted.promise]);
}

/** Resolves after `ms`, or at once when `signal` fires; leaves no timer behind. */
export function sleepUnlessAborted(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
      return;
    }
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}

/** The promise, or `error()` thrown when it takes longer than `limitMs`. */
export async function withinTime<T>(promise: Promise<T>, limitMs: number, error: () => Error): Promise<T> {
  const late = Promise.withResolvers<never>();
  late.promise.catch(() => undefined);
  promise.catch(() => undefined);
  const timer = setTimeout(() => late.reject(error()), limitMs);
  using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
  return await Promise.race([promise, late.promise]);
}
