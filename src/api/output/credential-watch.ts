/** Interval between checks, in `milliseconds`, as long as that of WebSockets. */
const CHECK_INTERVAL_MS = 15_000;

/**
 * Aborts `left` once what proved the caller of a stream does not prove it any more: its token or session has ended. Disposal
 * ends the checks.
 * @param isAllowed must not reject
 */
export function watchCredential(left: AbortController, isAllowed: () => Promise<boolean>): Disposable {
  const check = async (): Promise<void> => {
    if (!(await isAllowed())) left.abort();
  };
  const timer = setInterval(() => void check(), CHECK_INTERVAL_MS);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
