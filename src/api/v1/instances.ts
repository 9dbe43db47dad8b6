import { Type } from "@sinclair/typebox";
import { isoTime, type OperationId } from "../../domain/ids.ts";
import { type InstanceStats, SpawnedInstance, SpawnRequest } from "../../domain/instance.ts";
import { StatsQuery } from "../../domain/query.ts";
import type { SpawnInput } from "../../domain/spawn.ts";
import { json, type Reply } from "../reply.ts";
import { jsonSpec, OPERATION_LOCATION } from "../responses.ts";
import { type Route, route } from "../route.ts";
import { accepted } from "./accepted.ts";
import type { Surface } from "./surface.ts";
import { InstanceStatsSchema } from "./wire.ts";

/** Room for standard input of 10 MiB in base64, or with many escapes, and for all arguments, in `bytes`. */
const SPAWN_BODY_BYTES_MAX = 33_554_432;

export function instanceRoutes(surface: Surface): Route[] {
  return [spawnRoute(surface), statsRoute(surface)];
}

function spawnRoute(surface: Surface): Route {
  return route({
    method: "POST",
    path: "/instances",
    scope: "instances:spawn",
    id: "spawnInstance",
    tag: "Instances",
    summary: "Run a command in a new sandbox that starts from an image",
    body: SpawnRequest,
    bodyBytesMax: SPAWN_BODY_BYTES_MAX,
    responses: {
      201: jsonSpec("the instance is queued; its uuid is the id of its operation", SpawnedInstance, OPERATION_LOCATION),
    },
    errors: ["not_found", "invalid_path", "too_many_requests", "unavailable"],
    handle: async ({ principal, body }) =>
      accepted(surface, 201, await surface.service.instances.spawn(principal, spawnOf(body))),
  });
}

function spawnOf({ timeout, truncate_output_at, files, resources, ...request }: SpawnRequest): SpawnInput {
  return {
    ...request,
    timeoutSeconds: timeout,
    truncateOutputAtBytes: truncate_output_at,
    files:
      files === undefined
        ? undefined
        : Object.fromEntries(Object.entries(files).map(([path, { uuid, mode }]) => [path, { fileId: uuid, mode }])),
    resources:
      resources === undefined
        ? undefined
        : { vcpus: resources.vcpus, memoryBytes: resources.memory_bytes, diskBytes: resources.disk_bytes },
  };
}

function statsRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/instances/:uuid/stats",
    scope: "instances:read",
    id: "instanceStats",
    tag: "Instances",
    summary: "What a running instance uses of the host: one event a second until it ends, or one object",
    query: StatsQuery,
    responses: {
      200: {
        description: "with once=true one object, otherwise server-sent events whose data is such an object each",
        content: { "application/json": InstanceStatsSchema, "text/event-stream": Type.String() },
      },
    },
    errors: ["not_found", "conflict"],
    handle: async ({ request, principal, params, query }) => {
      const { instances } = surface.service;
      const id = params["uuid"] as OperationId;
      if (query.once === true) {
        return json(200, statsOf(await instances.statsOnce(principal, { id, signal: request.signal })));
      }
      const left = new AbortController();
      const signal = AbortSignal.any([request.signal, left.signal]);
      return eventStream(instances.stats(principal, { id, signal }), left);
    },
  });
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

/** The client's leaving ends the samples by `left`; the instance's end ends the stream with an event of its own. */
function eventStream(samples: AsyncIterable<InstanceStats>, left: AbortController): Reply {
  const encoder = new TextEncoder();
  const iterator = samples[Symbol.asyncIterator]();
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const step = await iterator.next();
      if (step.done !== true) {
        controller.enqueue(encoder.encode(`data: ${JSON.stringify(statsOf(step.value))}\n\n`));
        return;
      }
      controller.enqueue(encoder.encode("event: end\ndata: {}\n\n"));
      controller.close();
    },
    async cancel() {
      left.abort();
      await iterator.return?.();
    },
  });
  const headers = { "content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no" };
  return { status: 200, headers, body };
}
