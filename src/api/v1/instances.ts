import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { given } from "../../domain/given.ts";
import { isoTime, type OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import type { SpawnInput } from "../../domain/spawn.ts";
import { authorize } from "../auth.ts";
import { watchCredential } from "../output/credential-watch.ts";
import { json, type Reply, respond } from "../reply.ts";
import { about, checked, jsonSpec, OPERATION_LOCATION } from "../route.ts";
import { pullStream } from "../stream/pull.ts";
import { SPAWN_BODY_BYTES_MAX } from "../wire-fields.ts";
import { commandOf } from "./command-wire.ts";
import { networkWire } from "./operation-request.ts";
import {
  ChangedInstance,
  InstanceChange,
  InstanceStatsSchema,
  SpawnedInstance,
  SpawnRequest,
} from "./schema/instances.ts";
import { StatsQuery } from "./schema/query.ts";
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

const STATS = {
  query: checked(StatsQuery),
  ...about({
    id: "instanceStats",
    tag: "Instances",
    summary: "Read the resource usage of a running instance: an event every second until it ends, or one object",
    responses: {
      200: {
        description:
          "with once=true one object; otherwise server-sent events, each of which has such an object as data",
        content: { "application/json": InstanceStatsSchema, "text/event-stream": Type.String() },
      },
    },
    errors: ["not_found", "conflict"],
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
    )
    .get(
      "/:uuid/stats",
      async ({ request, principal, isAllowed, params, query }) => {
        const { instances } = surface.service;
        const id = params.uuid as OperationId;
        if (query.once === true) {
          const sample = await instances.statsOnce(principal, { id, signal: request.signal });
          return respond(json(200, statsOf(sample)), request);
        }
        const left = new AbortController();
        const signal = AbortSignal.any([request.signal, left.signal]);
        const samples = instances.stats(principal, { id, signal });
        return respond(eventStream(samples, left, watchCredential(left, isAllowed)), request);
      },
      { reads: "instances:read", ...STATS },
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
    files:
      files === undefined
        ? undefined
        : Object.fromEntries(
            Object.entries(files).map(([path, { uuid, mode, uid, gid }]) => [path, { fileId: uuid, mode, uid, gid }]),
          ),
    resources:
      resources === undefined
        ? undefined
        : { vcpus: resources.vcpus, memoryBytes: resources.memory_bytes, diskBytes: resources.disk_bytes },
  };
}

function statsOf(sample: InstanceStats) {
  return {
    cpu_time_ms: sample.cpuTimeMs,
    cpu_percent: sample.cpuPercent,
    memory_bytes: sample.memoryBytes,
    memory_peak_bytes: sample.memoryPeakBytes,
    pids: sample.pids,
    at: isoTime(sample.at),
  };
}

/** Streams samples as events. A client that disconnects aborts `left`; the end of the instance is an `end` event. */
function eventStream(samples: AsyncIterable<InstanceStats>, left: AbortController, held: Disposable): Reply {
  const body = pullStream(events(samples, left.signal), { held, onCancel: () => left.abort() });
  const headers = { "content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no" };
  return { status: 200, headers, body };
}

async function* events(
  samples: AsyncIterable<InstanceStats>,
  left: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  const encoder = new TextEncoder();
  try {
    for await (const sample of samples) yield encoder.encode(`data: ${JSON.stringify(statsOf(sample))}\n\n`);
  } catch (error) {
    if (!left.aborted) throw error;
  }
  if (left.aborted) return;
  yield encoder.encode("event: end\ndata: {}\n\n");
}
