import { ApiError, type ErrorBody, type ErrorCode, storageFull } from "../domain/errors.ts";
import { json, type Reply } from "./reply.ts";

/** HTTP status of every error value. */
export const STATUS_OF_ERROR = {
  validation_error: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  method_not_allowed: 405,
  conflict: 409,
  payload_too_large: 413,
  range_not_satisfiable: 416,
  invalid_path: 422,
  too_many_requests: 429,
  internal_error: 500,
  unavailable: 503,
  insufficient_storage: 507,
} as const satisfies Record<ErrorCode, number>;

/** Retry-After of 429 and 503 when the error does not give a better value, in `seconds`. */
const RETRY_AFTER_SECONDS_DEFAULT = 5;

/** The answer to an unexpected failure: it reveals nothing of the cause. */
const INTERNAL_ERROR: ErrorBody = {
  error: "internal_error",
  message: "internal error; the service's log names the cause under this request id",
  details: {},
};

/** The answer to a failure. An error that is not an `ApiError` becomes an internal error, without its message. */
export function errorReply(error: unknown): Reply {
  const known = error instanceof ApiError ? error : storageFull(error);
  const body = known?.body() ?? INTERNAL_ERROR;
  return json(STATUS_OF_ERROR[body.error], body, errorHeaders(body));
}

function errorHeaders(body: ErrorBody): Record<string, string> {
  switch (body.error) {
    case "unauthorized":
      return { "www-authenticate": 'Bearer realm="coppice"' };
    case "method_not_allowed":
      return Array.isArray(body.details["allow"]) ? { allow: body.details["allow"].join(", ") } : {};
    case "too_many_requests":
    case "unavailable": {
      const seconds = body.details["retry_after_seconds"];
      return { "retry-after": String(typeof seconds === "number" ? Math.ceil(seconds) : RETRY_AFTER_SECONDS_DEFAULT) };
    }
    case "range_not_satisfiable": {
      const size = body.details["size_bytes"];
      return typeof size === "number" ? { "content-range": `bytes */${size}` } : {};
    }
    default:
      return {};
  }
}

/** True when the service itself failed, so that the cause must be logged as an error. */
export function isInternal(error: unknown): boolean {
  if (error instanceof ApiError) return STATUS_OF_ERROR[error.code] === 500;
  return storageFull(error) === null;
}
