/** Every machine-readable error value of the interface; `api/errors.ts` gives each its HTTP status. */
export const ERROR_CODES = [
  "validation_error",
  "unauthorized",
  "forbidden",
  "not_found",
  "method_not_allowed",
  "conflict",
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

/** The error object of the interface, in a response or in a FAILED operation. */
export interface ErrorBody {
  readonly error: ErrorCode;
  readonly message: string;
  readonly details: ErrorDetails;
}

/**
 * A failure that the caller of the interface may see. Everything else that is thrown is an
 * internal error whose text never leaves the log.
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

/** How the system and the database say that there is no room left. */
const FULL_CODES = new Set<unknown>(["ENOSPC", "EDQUOT", "SQLITE_FULL"]);

/** What a caller may know of a failure that a full disk caused, anywhere in its chain of causes; null for any other. */
export function storageFull(error: unknown): ApiError | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (FULL_CODES.has((cause as NodeJS.ErrnoException).code)) {
      return new ApiError("insufficient_storage", "the disk of the service is full", {}, { cause: error });
    }
  }
  return null;
}
