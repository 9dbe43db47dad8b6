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

/** Sent with 429 and 503 where the error does not say better. */
const RETRY_AFTER_SECONDS_DEFAULT = 5;

/** All that a caller learns of a failure that we did not foresee. */
const INTERNAL_ERROR: ErrorBody = {
  error: "internal_error",
  message: "internal error; the log of the service has the cause under this request id",
  details: {},
};

/** The failure's answer; whatever is no `ApiError` becomes an internal error without its text. */
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

/** True when nobody but us is to blame, so that the cause belongs into the log as an error. */
export function isInternal(error: unknown): boolean {
  if (error instanceof ApiError) return STATUS_OF_ERROR[error.code] === 500;
  return storageFull(error) === null;
}
