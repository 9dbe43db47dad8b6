import { Elysia } from "elysia";
import { KIND_FACTS } from "../../domain/operation.ts";
import { authorize } from "../auth.ts";
import { SentOutputs } from "../output/sent-outputs.ts";
import { respond } from "../reply.ts";
import { about, checked, jsonSpec, OPERATION_LOCATION } from "../route.ts";
import { SPAWN_BODY_BYTES_MAX } from "../wire-fields.ts";
import { spawnOf } from "./command-wire.ts";
import { instanceFields } from "./metadata.ts";
import { InstanceSpawn } from "./schema/instances.ts";
import { SpawnedInstance } from "./schema/operations.ts";
import { type ContreeSurface, operationLocation } from "./surface.ts";

const SPAWN = {
  body: checked(InstanceSpawn),
  ...about({
    id: "contreeSpawnInstance",
    tag: "ConTree",
    summary: "Run a command in a new sandbox that starts from an image",
    responses: {
      201: jsonSpec("the instance is queued; its uuid is that of its operation", SpawnedInstance, OPERATION_LOCATION),
    },
    errors: ["not_found", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

export function instanceRoutes(surface: ContreeSurface) {
  const { instances, operations } = surface.service;
  return new Elysia({ prefix: "/instances" }).use(surface.access).post(
    "",
    async ({ request, principal, body }) => {
      if (body.tag) authorize(principal, "images:tag");
      const id = await instances.spawn(principal, spawnOf(body, instances.bounds));
      const spawned = { uuid: id, ...instanceFields(operations.get(principal, id), operations.request(principal, id)) };
      // The request can be longer than some clients accept in one piece.
      using outputs = new SentOutputs();
      return respond(await outputs.reply(spawned, 201, operationLocation(surface, id)), request) as never;
    },
    { takes: { scope: KIND_FACTS.instance.scope, bytesMax: SPAWN_BODY_BYTES_MAX }, ...SPAWN },
  );
}
