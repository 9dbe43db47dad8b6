import { Type } from "@sinclair/typebox";
import type { ErrorBody } from "../../domain/errors.ts";
import { type ErrorForm, STATUS_OF_ERROR } from "../errors.ts";

/** Codes of JSON-RPC errors. */
const RPC_CODES = { parseError: -32_700, invalidRequest: -32_600, internalError: -32_603, serverError: -32_000 };

const RpcError = Type.Object({
  jsonrpc: Type.Literal("2.0"),
  error: Type.Object({
    code: Type.Integer({ description: "code of JSON-RPC" }),
    message: Type.String({ description: "human-readable text" }),
    data: Type.Optional(Type.Unknown({ description: "the error value of the API as `error`, and `details`" })),
  }),
  id: Type.Union([Type.Null(), Type.String(), Type.Number()]),
});

/** Errors of messages that did not reach the protocol. */
export const MCP_ERRORS: ErrorForm = {
  statusOf: STATUS_OF_ERROR,
  schema: RpcError,
  body: (failure) => {
    const { error, message, details } = failure;
    return { jsonrpc: "2.0", error: { code: codeOf(failure), message, data: { error, details } }, id: null };
  },
};

function codeOf({ error, details }: ErrorBody): number {
  if (error === "internal_error") return RPC_CODES.internalError;
  if (error === "payload_too_large") return RPC_CODES.invalidRequest;
  if (error !== "validation_error") return RPC_CODES.serverError;
  // The error of a value names it; malformed JSON has no value to name.
  return details["field"] === undefined ? RPC_CODES.parseError : RPC_CODES.invalidRequest;
}
