import { Type } from "@sinclair/typebox";
import { type ErrorForm, STATUS_OF_ERROR } from "../errors.ts";

export const ContreeError = Type.Object({
  error: Type.String({ description: "human-readable text" }),
  status: Type.Integer({ description: "status of the response" }),
  code: Type.String({ description: "machine-readable error value" }),
  details: Type.Record(Type.String(), Type.Unknown(), { description: "additional information; may be empty" }),
});

/**
 * Errors of this surface. Its clients show `error` to their users, and repeat a request forever when the answer is 5xx, 410,
 * 425 or 429: so these are for states that pass by themselves, which a full disk does not.
 */
export const CONTREE_ERRORS: ErrorForm = {
  statusOf: { ...STATUS_OF_ERROR, insufficient_storage: STATUS_OF_ERROR.conflict },
  schema: ContreeError,
  body: ({ error, message, details }, status) => ({ error: message, status, code: error, details }),
};
