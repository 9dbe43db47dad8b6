import { ApiError, type ErrorCode, storageFull } from "../../../domain/errors.ts";
import { json } from "../../reply.ts";

/** The error codes of a call, with the HTTP status of each for a unary call. A stream ends with the code, and its status is 200. */
export const STATUS_OF_CODE = {
  canceled: 499,
  unknown: 500,
  invalid_argument: 400,
  deadline_exceeded: 504,
  not_found: 404,
  already_exists: 409,
  permission_denied: 403,
  resource_exhausted: 429,
  failed_precondition: 400,
  aborted: 409,
  out_of_range: 400,
  unimplemented: 501,
  internal: 500,
  unavailable: 503,
  data_loss: 500,
  unauthenticated: 401,
} as const;

export type RpcCode = keyof typeof STATUS_OF_CODE;

/** A failure of a call. Its message is for the caller. */
export class RpcError extends Error {
  override readonly name = "RpcError";
  readonly code: RpcCode;

  constructor(code: RpcCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

const CODE_OF_ERROR: Readonly<Record<ErrorCode, RpcCode>> = {
  validation_error: "invalid_argument",
  unauthorized: "unauthenticated",
  forbidden: "permission_denied",
  not_found: "not_found",
  method_not_allowed: "unimplemented",
  conflict: "failed_precondition",
  not_resumable: "failed_precondition",
  payload_too_large: "resource_exhausted",
  range_not_satisfiable: "out_of_range",
  invalid_path: "invalid_argument",
  too_many_requests: "resource_exhausted",
  internal_error: "internal",
  unavailable: "unavailable",
  insufficient_storage: "resource_exhausted",
};

/** The code for a status of a plain HTTP error. */
const CODE_OF_STATUS: ReadonlyMap<number, RpcCode> = new Map([
  [400, "invalid_argument"],
  [401, "unauthenticated"],
  [403, "permission_denied"],
  [404, "not_found"],
  [409, "already_exists"],
  [429, "resource_exhausted"],
  [501, "unimplemented"],
  [502, "unavailable"],
  [503, "unavailable"],
  [504, "deadline_exceeded"],
]);

/** The error for the caller. It does not reveal the cause of an unexpected failure: that becomes `internal`. */
export function rpcErrorOf(error: unknown): RpcError {
  if (error instanceof RpcError) return error;
  const apiError = error instanceof ApiError ? error : storageFull(error);
  if (apiError !== null) return new RpcError(CODE_OF_ERROR[apiError.code], apiError.message, { cause: error });
  if (error instanceof Error && "status" in error) {
    const code = CODE_OF_STATUS.get(Number(error.status));
    if (code !== undefined) return new RpcError(code, error.message, { cause: error });
  }
  return new RpcError("internal", "internal error", { cause: error });
}

/** The body of a failed unary call, and the error in the last frame of a stream. */
export function errorBody({ code, message }: RpcError): { readonly code: RpcCode; readonly message: string } {
  return { code, message };
}

/** The answer to a failed unary call. */
export function errorResponse(error: RpcError): Response {
  const { status, headers, body } = json(STATUS_OF_CODE[error.code], errorBody(error));
  return new Response(body, { status, headers: { ...headers, "content-type": "application/json" } });
}
