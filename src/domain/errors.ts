/** All machine-readable error values of the API; `api/errors.ts` maps each to an HTTP status. */
export const ERROR_CODES = [
  "validation_error",
  "unauthorized",
  "forbidden",
  "not_found",
  "method_not_allowed",
  "conflict",
  "not_resumable",
  "payload_too_large",
  "range_not_satisfiable",
  "invalid_path",
  "too_many_requests",
  "internal_error",
  "unavailable",
  "insufficient_storage",
] as const;

export type ErrorCode = (typeof ERROR_CODES)[number];

export type ErrorDetails = Readonly<Record<string, unknown>>;

/** The error object of the API, in a response or in a FAILED operation. */
export interface ErrorBody {
  readonly error: ErrorCode;
  readonly message: string;
  readonly details: ErrorDetails;
}

/**
 * A failure whose message callers of the API may see. Any other error is an internal error, and its message appears in the
 * log only.
 */
export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly code: ErrorCode;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.details = details;
  }

  body(): ErrorBody {
    return { error: this.code, message: this.message, details: this.details };
  }
}

/** Error codes of the system and the database for a full disk. */
const FULL_CODES = new Set<unknown>(["ENOSPC", "EDQUOT", "SQLITE_FULL"]);

/** The error for callers when a full disk is anywhere in the chain of causes; otherwise null. */
export function storageFull(error: unknown): ApiError | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (FULL_CODES.has((cause as NodeJS.ErrnoException).code)) {
      return new ApiError("insufficient_storage", "the disk of the service is full", {}, { cause: error });
    }
  }
  return null;
}
