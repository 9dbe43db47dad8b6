import { Elysia } from "elysia";
import type { OperationId } from "../../domain/ids.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import { about, checked, jsonSpec, OPERATION_LOCATION } from "../route.ts";
import { CheckpointRequest } from "./schema/instances.ts";
import { AcceptedOperation } from "./schema/operations.ts";
import { accepted, type Surface } from "./surface.ts";

const CHECKPOINT = {
  body: checked(CheckpointRequest),
  ...about({
    id: "checkpointInstance",
    tag: "Instances",
    summary: "Make an image of the files of a running instance, which continues to run",
    responses: { 202: jsonSpec("the checkpoint is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

export function checkpointRoutes(surface: Surface) {
  return new Elysia({ prefix: "/instances" }).use(surface.access).post(
    "/:uuid/checkpoint",
    async ({ request, principal, params, body: { tag, timeout } }) => {
      const checkpoint = { id: params.uuid as OperationId, tag, timeoutSeconds: timeout };
      return accepted(surface, request, 202, await surface.service.instances.checkpoint(principal, checkpoint));
    },
    { takes: { scope: KIND_FACTS.checkpoint.scope }, ...CHECKPOINT },
  );
}
