import { type TSchema, Type } from "@sinclair/typebox";
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
  not_resumable: 409,
  payload_too_large: 413,
  range_not_satisfiable: 416,
  invalid_path: 422,
  too_many_requests: 429,
  internal_error: 500,
  unavailable: 503,
  insufficient_storage: 507,
} as const satisfies Record<ErrorCode, number>;

/** The form in which a surface reports errors. */
export interface ErrorForm {
  readonly statusOf: Readonly<Record<ErrorCode, number>>;
  /** schema of the body */
  readonly schema: TSchema;
  readonly body: (error: ErrorBody, status: number) => unknown;
  /** value of WWW-Authenticate; absent: that of bearer tokens */
  readonly challenge?: string;
}

/** An error on the wire. */
export const ErrorObject = Type.Object({
  error: Type.String({ description: "machine-readable error value" }),
  message: Type.String({ description: "human-readable text" }),
  details: Type.Record(Type.String(), Type.Unknown(), { description: "additional information; may be empty" }),
});

/** Errors of the specified API, and of all paths that belong to no other surface. */
export const SPECIFIED_ERRORS: ErrorForm = {
  statusOf: STATUS_OF_ERROR,
  schema: ErrorObject,
  body: (error) => error,
};

/** Retry-After of 429 and 503 when the error does not give a better value, in `seconds`. */
const RETRY_AFTER_SECONDS_DEFAULT = 5;

/** The answer to an unexpected failure: it does not reveal the cause. */
const INTERNAL_ERROR: ErrorBody = {
  error: "internal_error",
  message: "internal error; the service's log names the cause under this request id",
  details: {},
};

/** The answer to a failure. An error that is not an `ApiError` becomes an internal error, without its message. */
export function errorReply(error: unknown, form: ErrorForm = SPECIFIED_ERRORS): Reply {
  const apiError = error instanceof ApiError ? error : storageFull(error);
  const body = apiError?.body() ?? INTERNAL_ERROR;
  const status = form.statusOf[body.error];
  return json(status, form.body(body, status), errorHeaders(body, form.challenge));
}

function errorHeaders(body: ErrorBody, challenge = 'Bearer realm="coppice"'): Record<string, string> {
  switch (body.error) {
    case "unauthorized":
      return { "www-authenticate": challenge };
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
