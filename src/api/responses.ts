import type { TSchema } from "@sinclair/typebox";
import type { ResponseSpec } from "./route.ts";

/** Description of a JSON answer. */
export function jsonSpec(description: string, schema: TSchema, headers?: Record<string, string>): ResponseSpec {
  return { description, content: { "application/json": schema }, ...(headers === undefined ? {} : { headers }) };
}

export const OPERATION_LOCATION = { Location: "address of the operation that does the work" };
export const RETRY_AFTER = {
  "Retry-After": "recommended time until the next look, in seconds; absent when the operation has ended",
};
