import { ApiError } from "../domain/errors.ts";

/**
 * Gives `work` a deadline. The work itself goes on: the caller ends it by disposing of what it uses.
 * @throws ApiError `unavailable`, naming `step`
 */
export async function withDeadline<T>(work: Promise<T>, deadlineMs: number, step: string): Promise<T> {
  using timer = startTimer(deadlineMs);
  const expired = timer.fired.then((): never => {
    throw new ApiError("unavailable", `${step} took longer than ${deadlineMs / 1000} s`);
  });
  return await Promise.race([work, expired]);
}

/** Rejects with the reason of `signal` as soon as it fires; otherwise settles as `work` does. */
export async function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(signal.reason);
  if (signal.aborted) onAbort();
  signal.addEventListener("abort", onAbort, { once: true });
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
  return await Promise.race([work, aborted]);
}

/** A timer that is cleared when its scope ends. */
export function startTimer(delayMs: number): Disposable & { readonly fired: Promise<void> } {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, delayMs);
  return { fired: promise, [Symbol.dispose]: () => clearTimeout(timer) };
}
