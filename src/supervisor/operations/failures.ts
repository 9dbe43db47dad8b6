import { ApiError, type ErrorBody, storageFull } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import { interruptedText } from "../survivors/instance-record.ts";
import { NotBegunError } from "../survivors/survey.ts";

export const STOPPING = new ApiError("unavailable", "the service is stopping");
export const CANCELLED = new ApiError("conflict", "the operation was cancelled");
export const STOPPED = new ApiError("unavailable", "the service stopped while the operation ran");
export const NOT_LEFT = new ApiError(
  "unavailable",
  "the service stopped, and the operation could not continue without it",
);
export const STOPPED_WITH_ALL = new ApiError(
  "unavailable",
  "the operator stopped the service with everything that ran",
);
export const HOST_STOPPED = new ApiError("unavailable", "the host was shut down while the operation ran");
export const HELD = new ApiError("unavailable", "the operator lets no work begin now");
const RESTARTED = new ApiError("unavailable", "the service was restarted while the operation ran");
export const CREDENTIALS_GONE = new ApiError(
  "unavailable",
  "the service was restarted before the import began, and registry credentials are never stored",
);

/** The error of an operation that was interrupted. @param problem why its machine cannot be continued; absent: it had none */
export function interrupted(problem: string | undefined): ApiError {
  return problem === undefined ? RESTARTED : new ApiError("unavailable", interruptedText(problem));
}

export const TOO_LARGE = new ApiError("unavailable", "the instance needs more memory or CPUs than this host's budget");

/** The error of a failed operation, for its row. The causes that callers may not see are logged. */
export function failureOf(error: unknown, id: OperationId, log: Log): ErrorBody {
  if (error instanceof ApiError) return error.body();
  if (error instanceof NotBegunError) return interrupted(error.message).body();
  const full = storageFull(error);
  if (full !== null) {
    log.warn("the disk is full", { operation: id, error });
    return full.body();
  }
  log.error("operation failed unexpectedly", { operation: id, error });
  return new ApiError("internal_error", "the operation failed because of an internal error").body();
}
