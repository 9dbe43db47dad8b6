import { Type } from "@sinclair/typebox";
import { getFile } from "../db/files.ts";
import { resolveImage } from "../db/images.ts";
import { getOperation } from "../db/operations.ts";
import { ApiError } from "../domain/errors.ts";
import { isoTime, type OperationId } from "../domain/ids.ts";
import type { ImageReference } from "../domain/image.ts";
import { SpawnedInstance, SpawnRequest } from "../domain/instance.ts";
import { StatsQuery } from "../domain/query.ts";
import { type CheckedSpawn, checkSpawn } from "../domain/spawn.ts";
import type { InstanceStats, SubmittedFile } from "../supervisor/ports.ts";
import { json, type Reply } from "./reply.ts";
import { jsonSpec, OPERATION_LOCATION, operationLocation } from "./responses.ts";
import { type Route, route } from "./route.ts";
import type { ApiServices, Principal } from "./services.ts";
import { InstanceStatsSchema } from "./wire.ts";

/** Room for standard input of 10 MiB in base64, or with many escapes, and for all arguments, in `bytes`. */
const SPAWN_BODY_BYTES_MAX = 33_554_432;

export function instanceRoutes(services: ApiServices): Route[] {
  return [spawnRoute(services), statsRoute(services)];
}

function spawnRoute(services: ApiServices): Route {
  return route({
    method: "POST",
    path: "/v1/instances",
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
    handle: async ({ principal, body }) => {
      const { image, files, ...spawn } = checkSpawn(body, services.limits);
      const { id } = await services.operations.submitInstance(principal.accountId, {
        ...spawn,
        imageId: resolve(services, principal, image),
        files: files.map((file) => resolveFile(services, principal, file)),
      });
      return json(201, { uuid: id }, { location: operationLocation(services, id) });
    },
  });
}

/** Now, not when the instance starts: a tag that moves later does not move the instance. */
function resolve(services: ApiServices, principal: Principal, reference: ImageReference) {
  const row = resolveImage(services.db, principal.accountId, reference);
  if (row === null) throw new ApiError("not_found", "no such image", { field: "image", ...reference });
  return row.id;
}

function resolveFile(services: ApiServices, principal: Principal, file: CheckedSpawn["files"][number]): SubmittedFile {
  const row = getFile(services.db, principal.accountId, { uuid: file.fileId });
  if (row === null) {
    throw new ApiError("not_found", "no such file", { field: "files", path: file.path, uuid: file.fileId });
  }
  return { ...file, sha256: row.sha256, sizeBytes: row.sizeBytes };
}

function statsRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/instances/:uuid/stats",
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
      const id = params["uuid"] as OperationId;
      const operation = getOperation(services.db, principal.accountId, id);
      if (operation === null || operation.kind !== "instance") {
        throw new ApiError("not_found", "no such instance", { uuid: id });
      }
      const left = new AbortController();
      const samples = services.operations.stats(id, AbortSignal.any([request.signal, left.signal]));
      if (samples === null) throw notRunning(operation.status);
      if (query.once !== true) return eventStream(samples, left);
      for await (const sample of samples) {
        left.abort();
        return json(200, statsOf(sample));
      }
      throw notRunning(operation.status);
    },
  });
}

function notRunning(status: string): ApiError {
  return new ApiError("conflict", "the instance is not running", { status });
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
