import { ApiError } from "../../domain/errors.ts";

/** Interval between checks, in `milliseconds`, as long as that of WebSockets. */
const CHECK_INTERVAL_MS = 15_000;

/**
 * Aborts `left` once what proved the caller of a stream does not prove it any more: its token or session has ended. The
 * reason is an ApiError then. Disposal ends the checks.
 * @param isAllowed must not reject
 */
export function watchCredential(left: AbortController, isAllowed: () => Promise<boolean>): Disposable {
  const check = async (): Promise<void> => {
    if (!(await isAllowed())) left.abort(new ApiError("unauthorized", "the token is not valid any more"));
  };
  const timer = setInterval(() => void check(), CHECK_INTERVAL_MS);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
