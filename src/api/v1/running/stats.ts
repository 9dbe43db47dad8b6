import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { isoTime } from "../../../domain/ids.ts";
import type { InstanceStats } from "../../../domain/instance.ts";
import { watchCredential } from "../../output/credential-watch.ts";
import { json, type Reply, respond } from "../../reply.ts";
import { about, checked } from "../../route.ts";
import { pullStream } from "../../stream/pull.ts";
import { InstanceStatsSchema } from "../schema/instances.ts";
import { StatsQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";
import type { Runner } from "./runner.ts";

const STATS = ({ noun, id }: Runner<string>) => ({
  query: checked(StatsQuery),
  ...about({
    id: id("instanceStats"),
    tag: "Instances",
    summary: `Read the resource usage of a running ${noun}: an event every second until it ends, or one object`,
    responses: {
      200: {
        description:
          "with once=true one object; otherwise server-sent events, each of which has such an object as data",
        content: { "application/json": InstanceStatsSchema, "text/event-stream": Type.String() },
      },
    },
    errors: ["not_found", "conflict", "unavailable"],
  }),
});

export function statsRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  return new Elysia({ prefix: runner.prefix }).use(surface.access).get(
    "/stats",
    async ({ request, principal, isAllowed, params, query }) => {
      const { instances } = surface.service;
      const id = runner.target(principal, params);
      if (query.once === true) {
        const sample = await instances.statsOnce(principal, { id, signal: request.signal });
        return respond(json(200, statsOf(sample)), request);
      }
      const left = new AbortController();
      const signal = AbortSignal.any([request.signal, left.signal]);
      const samples = instances.stats(principal, { id, signal });
      return respond(eventStream(samples, left, watchCredential(left, isAllowed)), request);
    },
    { reads: "instances:read", ...STATS(runner) },
  );
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
