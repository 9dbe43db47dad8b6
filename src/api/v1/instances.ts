import { Elysia } from "elysia";
import { given } from "../../domain/given.ts";
import type { OperationId } from "../../domain/ids.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import type { SpawnInput } from "../../domain/spawn.ts";
import { authorize } from "../auth.ts";
import { about, checked, jsonSpec, OPERATION_LOCATION } from "../route.ts";
import { SPAWN_BODY_BYTES_MAX } from "../wire-fields.ts";
import { commandOf, filesOf, resourcesOf } from "./command-wire.ts";
import { networkWire } from "./operation-request.ts";
import { ChangedInstance, InstanceChange, SpawnedInstance, SpawnRequest } from "./schema/instances.ts";
import { accepted, type Surface } from "./surface.ts";

const SPAWN = {
  body: checked(SpawnRequest),
  ...about({
    id: "spawnInstance",
    tag: "Instances",
    summary: "Run a command in a new sandbox that starts from an image",
    responses: {
      201: jsonSpec("the instance is queued; its uuid is the id of its operation", SpawnedInstance, OPERATION_LOCATION),
    },
    errors: ["not_found", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

const CHANGE = {
  body: checked(InstanceChange),
  ...about({
    id: "changeInstance",
    tag: "Instances",
    summary: "Give the command of a running instance more time, or the instance another network",
    responses: { 200: jsonSpec("the changed fields, as they are now", ChangedInstance) },
    errors: ["not_found", "conflict", "unavailable"],
  }),
};

export function instanceRoutes(surface: Surface) {
  return new Elysia({ prefix: "/instances" })
    .use(surface.access)
    .post(
      "",
      async ({ request, principal, body }) => {
        if (typeof body.network === "object") authorize(principal, "instances:network");
        if (body.tag !== undefined) authorize(principal, "images:tag");
        return accepted(surface, request, 201, await surface.service.instances.spawn(principal, spawnOf(body)));
      },
      { takes: { scope: KIND_FACTS.instance.scope, bytesMax: SPAWN_BODY_BYTES_MAX }, ...SPAWN },
    )
    .patch(
      "/:uuid",
      async ({ principal, params, body: { timeout, network } }) => {
        const { instances } = surface.service;
        const id = params.uuid as OperationId;
        if (network !== undefined) authorize(principal, "instances:network");
        const changed = await instances.change(principal, id, { timeoutSeconds: timeout, network });
        return {
          uuid: params.uuid,
          ...given({ timeout }),
          ...(network === undefined ? {} : { network: networkWire(changed.network) }),
        };
      },
      { takes: { scope: "instances:exec" }, ...CHANGE },
    );
}

function spawnOf(request: SpawnRequest): SpawnInput {
  const { image, hostname, disposable, tag, network, timeout, files, resources } = request;
  return {
    ...commandOf(request),
    image,
    hostname,
    disposable,
    tag,
    network,
    timeoutSeconds: timeout,
    files: files === undefined ? undefined : filesOf(files),
    resources: resources === undefined ? undefined : resourcesOf(resources),
  };
}
