import { isAscii } from "node:buffer";
import { type Static, Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import { isoTimeNs, type LogEvent } from "../../domain/log-event.ts";
import type { EventStream } from "../../service/events.ts";
import { startTimer } from "../../system/waiting.ts";
import { prefersJson } from "../accept.ts";
import { JSON_TYPE, type Reply, respond } from "../reply.ts";
import { about, checked } from "../route.ts";
import { pullStream, streamed } from "../stream.ts";
import { OperationEvent } from "./schema/events.ts";
import { EventsQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

/** Interval between comments in a stream without events, in `milliseconds`, so that proxies keep it open. */
const COMMENT_INTERVAL_MS = 15_000;
const LAST_EVENT_ID = "Last-Event-ID";
const ID_PATTERN = /^\d{1,15}$/;

const EVENTS = {
  query: checked(EventsQuery),
  ...about({
    id: "operationEvents",
    tag: "Operations",
    summary: "Read or follow the events of an operation: output, starts and ends of processes",
    requestHeaders: { [LAST_EVENT_ID]: "only events with greater ids; takes precedence over `since`" },
    responses: {
      200: {
        description:
          "server-sent events, each of which has such an object as data, and its id and type; " +
          "with Accept: application/json an array of such objects. The last event of an ended operation is `completion`",
        content: { "application/json": Type.Array(OperationEvent), "text/event-stream": Type.String() },
      },
    },
    errors: ["not_found", "too_many_requests"],
  }),
};

export function eventRoutes(surface: Surface) {
  return new Elysia({ prefix: "/operations" }).use(surface.access).get(
    "/:id/events",
    async ({ request, principal, params, query }) => {
      const isJson = prefersJson(request.headers.get("accept"));
      const { spid, follow = false, limit } = checkedQuery(query, isJson);
      const since = lastEventId(request.headers.get(LAST_EVENT_ID)) ?? query.since ?? -1;
      const left = new AbortController();
      const signal = AbortSignal.any([request.signal, left.signal]);
      const { operations } = surface.service;
      const id = params.id as OperationId;
      const events = operations.events(principal, { id, since, follow, spid, limit, signal });
      const reply = isJson ? await streamed(JSON_TYPE, arrayText(events), events) : eventStream(events, left);
      return respond(reply, request);
    },
    { reads: "operations:read", ...EVENTS },
  );
}

/** @throws ApiError `validation_error` for a parameter that the content type does not allow */
function checkedQuery(query: Static<typeof EventsQuery>, isJson: boolean): Static<typeof EventsQuery> {
  if (isJson && query.follow === true) {
    throw new ApiError("validation_error", "follow needs an event stream: accept text/event-stream", {
      field: "follow",
    });
  }
  if (!isJson && query.limit !== undefined) {
    throw new ApiError("validation_error", "limit needs an array: accept application/json", { field: "limit" });
  }
  return query;
}

/** The id of the last event that the client has seen; null when there is none. @throws ApiError `validation_error` */
function lastEventId(header: string | null): number | null {
  if (header === null || header === "") return null;
  if (ID_PATTERN.test(header)) return Number(header);
  throw new ApiError("validation_error", `${LAST_EVENT_ID} must be the id of an event`, { field: LAST_EVENT_ID });
}

/** A client that disconnects aborts `left`. */
function eventStream(events: EventStream, left: AbortController): Reply {
  const encoder = new TextEncoder();
  const comment = encoder.encode(": keepalive\n\n");
  let pending: ReturnType<EventStream["next"]> | null = null;
  let isFirst = true;
  const next = async (): Promise<IteratorResult<Uint8Array>> => {
    // Bun sends the headers with the first bytes of the body, which the client should not have to wait for.
    if (isFirst) {
      isFirst = false;
      return { done: false, value: comment };
    }
    pending ??= events.next();
    using timer = startTimer(COMMENT_INTERVAL_MS);
    const found = await Promise.race([pending, timer.fired]);
    if (found === undefined) return { done: false, value: comment };
    pending = null;
    return found === null ? { done: true, value: undefined } : { done: false, value: frames(found) };
  };
  const end = async (): Promise<IteratorResult<Uint8Array>> => {
    // The pending wait rejects because `left` was aborted.
    await pending?.catch(() => undefined);
    return { done: true, value: undefined };
  };
  const body = pullStream({ next, return: end }, { held: events, onCancel: () => left.abort() });
  const headers = { "content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no" };
  return { status: 200, headers, body };
}

/** Encoded events, which the followers of one log share. */
const framesOf = new WeakMap<readonly LogEvent[], Uint8Array>();

/** Encodes events as frames of an event stream. */
function frames(events: readonly LogEvent[]): Uint8Array {
  const known = framesOf.get(events);
  if (known !== undefined) return known;
  const text = events.map((event) => `id: ${event.id}\nevent: ${event.type}\ndata: ${jsonOf(event)}\n\n`).join("");
  const bytes = Buffer.from(text, "utf8");
  framesOf.set(events, bytes);
  return bytes;
}

async function* arrayText(events: EventStream): AsyncGenerator<string, void, undefined> {
  let separator = "[";
  for (let found = await events.next(); found !== null; found = await events.next()) {
    yield separator + found.map(jsonOf).join(",");
    separator = ",";
  }
  yield separator === "[" ? "[]" : "]";
}

function jsonOf({ id, timeNs, spid, type, payload }: LogEvent): string {
  const process = spid === null ? "" : `"spid":${spid},`;
  return `{"id":${id},"time":"${isoTimeNs(timeNs)}",${process}"type":"${type}","data":${dataOf(type, payload)}}`;
}

/** Data other than output is stored as JSON. */
function dataOf(type: LogEvent["type"], payload: Uint8Array): string {
  const bytes = Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength);
  if (type !== "stdout" && type !== "stderr") return bytes.toString("utf8");
  return isAscii(bytes)
    ? `{"content":${JSON.stringify(bytes.toString("latin1"))},"encoding":"ascii"}`
    : `{"content":"${bytes.toString("base64")}","encoding":"base64"}`;
}
