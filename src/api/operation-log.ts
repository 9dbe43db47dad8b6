import { Type } from "@sinclair/typebox";
import { getOperation } from "../db/operations.ts";
import { ApiError } from "../domain/errors.ts";
import { isoTime, type OperationId } from "../domain/ids.ts";
import { LogLine } from "../domain/operation-log.ts";
import { json } from "./reply.ts";
import { jsonSpec } from "./responses.ts";
import { type Route, route } from "./route.ts";
import type { ApiServices } from "./services.ts";

export function operationLogRoutes(services: ApiServices): Route[] {
  return [
    route({
      method: "GET",
      path: "/v1/operations/:id/log",
      scope: "operations:read",
      id: "operationLog",
      tag: "Operations",
      summary: "Read what the service logged about an operation since it was started",
      responses: { 200: jsonSpec("lines of the log, the oldest first", Type.Array(LogLine)) },
      errors: ["not_found"],
      handle: ({ principal, params }) => {
        const id = params["id"] as OperationId;
        if (getOperation(services.db, principal.accountId, id) === null) {
          throw new ApiError("not_found", "no such operation", { id });
        }
        const lines = services.operationLog.lines(id).map(({ at, level, message, fields, phases }) => ({
          time: isoTime(at),
          level,
          message,
          ...fields,
          ...(phases === undefined ? {} : { phases }),
        }));
        return json(200, lines);
      },
    }),
  ];
}
