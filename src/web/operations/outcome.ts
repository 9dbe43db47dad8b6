import type { Operation } from "../../client/types.ts";

/** The image that an operation has made; undefined: none. */
export function resultImage({ result }: Operation): string | undefined {
  return result?.image;
}

/** How the command of an operation ended, for its status mark. */
export function endOf({ result }: Operation): { readonly exitCode?: number; readonly isTimedOut?: boolean } {
  return result !== undefined && "exit_code" in result
    ? { exitCode: result.exit_code, isTimedOut: result.timed_out }
    : {};
}

/** Duration of an operation, in `milliseconds`; the time until now while it is running. */
export function tookMs({ duration_ms: duration, started_at: startedAt }: Operation, now: number): number | undefined {
  if (duration !== undefined) return duration;
  return startedAt === undefined ? undefined : Math.max(0, now - Date.parse(startedAt));
}
