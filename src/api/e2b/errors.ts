import { Type } from "@sinclair/typebox";
import { ApiError, type ErrorCode, type ErrorDetails, storageFull } from "../../domain/errors.ts";
import { type ErrorForm, errorReply, STATUS_OF_ERROR } from "../errors.ts";
import type { Reply } from "../reply.ts";
import { wireId } from "./ids.ts";
import { isRpcPath } from "./routing.ts";
import { errorBody, rpcErrorOf } from "./rpc/errors.ts";

export const E2bErrorObject = Type.Object({
  code: Type.Integer({ description: "status of the response" }),
  message: Type.String({ description: "human-readable text" }),
});

/** Errors of this surface: its clients read the status from the body, too, and fail without it. */
export const E2B_ERRORS: ErrorForm = {
  statusOf: { ...STATUS_OF_ERROR, invalid_path: STATUS_OF_ERROR.validation_error },
  schema: E2bErrorObject,
  body: ({ message }, status) => ({ code: status, message }),
};

/** The codes of the API for statuses that it has; any other 4xx is a validation error, and any other 5xx passes by itself. */
const CODES = new Map<number, ErrorCode>(
  Object.entries(STATUS_OF_ERROR).map(([code, status]) => [status, code as ErrorCode]),
);

/** An error with a status of its own, and further keys of its body. */
export class E2bError extends ApiError {
  readonly status: number;
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(
    status: number,
    message: string,
    fields: Readonly<Record<string, unknown>> = {},
    details: ErrorDetails = {},
  ) {
    super(CODES.get(status) ?? (status < 500 ? "validation_error" : "unavailable"), message, details);
    this.status = status;
    this.fields = fields;
  }
}

/** The status and the message of an error as its callers see it. */
export interface E2bStatus {
  readonly status: number;
  readonly message: string;
}

/** An error that is not an `ApiError` is an internal error, without its message. */
export function e2bStatusOf(error: unknown): E2bStatus {
  const apiError = error instanceof ApiError ? error : storageFull(error);
  if (apiError === null) return { status: STATUS_OF_ERROR.internal_error, message: "internal error" };
  const status = apiError instanceof E2bError ? apiError.status : E2B_ERRORS.statusOf[apiError.code];
  return { status, message: apiError.message };
}

/** The answer to a failure of a request with this path. */
export function e2bReply(error: unknown, path: string): Reply {
  // The scheme that it names is the one of the other surfaces.
  const { headers, ...reply } = replyTo(error, isRpcPath(path));
  const { "www-authenticate": _scheme, ...others } = headers;
  return { ...reply, headers: others };
}

/** @param isRpc whether clients expect the code of a call; an error with a status of its own is an answer in its place */
function replyTo(error: unknown, isRpc: boolean): Reply {
  if (!(error instanceof E2bError)) {
    return errorReply(error, isRpc ? { ...E2B_ERRORS, body: () => errorBody(rpcErrorOf(error)) } : E2B_ERRORS);
  }
  const { status, fields, code } = error;
  const statusOf = { ...E2B_ERRORS.statusOf, [code]: status };
  return errorReply(error, { ...E2B_ERRORS, statusOf, body: ({ message }) => ({ code: status, message, ...fields }) });
}

/** The message of the answer for a sandbox that does not run. Clients recognise it by these words. */
const GONE = "The sandbox was not found";
const CLOSED = "The sandbox is running but port is not open";

/** The error of a request to a sandbox that does not run, or does not exist. */
export function e2bGone(id: string): E2bError {
  return new E2bError(502, GONE, { sandboxId: wireId(id) });
}

/** The error of a request to a port on which nothing listens. */
export function portClosed(id: string, port: number): E2bError {
  return new E2bError(502, CLOSED, { sandboxId: wireId(id), port });
}
