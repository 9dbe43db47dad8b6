import type { TSchema } from "@sinclair/typebox";
import type { OperationId } from "../domain/ids.ts";
import type { ResponseSpec } from "./route.ts";
import type { ApiServices } from "./services.ts";

/** Description of a JSON answer. */
export function jsonSpec(description: string, schema: TSchema, headers?: Record<string, string>): ResponseSpec {
  return { description, content: { "application/json": schema }, ...(headers === undefined ? {} : { headers }) };
}

export const OPERATION_LOCATION = { Location: "address of the operation that does the work" };
export const RETRY_AFTER = {
  "Retry-After": "recommended time until the next look, in seconds; absent when the operation has ended",
};

/** Address of something under the interface, as the operator wants it to be seen. */
export function locationOf(services: ApiServices, path: string): string {
  return `${services.publicUrl ?? ""}${path}`;
}

export function operationLocation(services: ApiServices, id: OperationId): string {
  return locationOf(services, `/v1/operations/${id}`);
}
