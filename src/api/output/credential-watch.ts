import { ApiError } from "../../domain/errors.ts";

/** Interval between checks, in `milliseconds`, as long as that of WebSockets. */
const CHECK_INTERVAL_MS = 15_000;

/**
 * Aborts `left` with an ApiError as soon as the token or session of the caller of a stream is no longer valid. Disposal
 * ends the checks.
 * @param isAllowed must not reject
 */
export function watchCredential(left: AbortController, isAllowed: () => Promise<boolean>): Disposable {
  const check = async (): Promise<void> => {
    if (!(await isAllowed())) left.abort(new ApiError("unauthorized", "the token is no longer valid"));
  };
  const timer = setInterval(() => void check(), CHECK_INTERVAL_MS);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
