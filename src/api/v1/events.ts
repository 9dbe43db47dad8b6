import { type Static, Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { LogEvent } from "../../domain/log-event.ts";
import type { EventStream, EventsRequest } from "../../service/events.ts";
import type { Principal } from "../../service/parts.ts";
import { ownTurn } from "../../system/turns.ts";
import { prefersJson } from "../accept.ts";
import { eventStream, LAST_EVENT_ID, lastEventId, SharedFrames } from "../output/event-stream.ts";
import { JSON_TYPE, respond } from "../reply.ts";
import { about, checked } from "../route.ts";
import { streamed } from "../stream/text.ts";
import { EventText } from "./event-text.ts";
import { OperationEvent } from "./schema/events.ts";
import { EventsQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

/** Longest time without anything in a stream, in `milliseconds`. */
const IDLE_MS = 15_000;

/** Objects with event logs, as the paths of their routes name them. */
interface EventSource<Prefix extends string> {
  /** below the prefix of the surface, with its parameter */
  readonly prefix: Prefix;
  /** of the route */
  readonly id: string;
  readonly tag: string;
  readonly summary: string;
  /** sentence about the last event */
  readonly last: string;
  open(principal: Principal, params: object, request: EventsRequest): EventStream;
  openArray(principal: Principal, params: object, request: EventsRequest): Promise<EventStream>;
}

const operationId = (params: object): OperationId => (params as { readonly id: OperationId }).id;

export function operationSource({ service: { operations } }: Surface): EventSource<"/operations/:id"> {
  return {
    prefix: "/operations/:id",
    id: "operationEvents",
    tag: "Operations",
    summary: "Read or follow the events of an operation: output, starts and ends of processes",
    last: "The last event of an ended operation is `completion`",
    open: (principal, params, request) => operations.events(principal, { ...request, id: operationId(params) }),
    openArray: (principal, params, request) =>
      operations.eventArray(principal, { ...request, id: operationId(params) }),
  };
}

export function sandboxSource({ service: { sandboxes } }: Surface): EventSource<"/sandboxes/:sandbox"> {
  const idOf = (principal: Principal, params: object) =>
    sandboxes.find(principal, (params as { readonly sandbox: string }).sandbox);
  return {
    prefix: "/sandboxes/:sandbox",
    id: "sandboxEvents",
    tag: "Sandboxes",
    summary: "Read or follow the events of a sandbox: its states, and output, starts and ends of processes",
    last: "The last event of an ended sandbox is the `state` that says so",
    open: (principal, params, request) => sandboxes.events(principal, idOf(principal, params), request),
    openArray: (principal, params, request) => sandboxes.eventArray(principal, idOf(principal, params), request),
  };
}

const EVENTS = ({ id, tag, summary, last }: EventSource<string>) => ({
  query: checked(EventsQuery),
  ...about({
    id,
    tag,
    summary,
    requestHeaders: { [LAST_EVENT_ID]: "only events with greater ids; takes precedence over `since`" },
    responses: {
      200: {
        description:
          "server-sent events, each of which has such an object as data, and its id and type; " +
          `with Accept: application/json an array of such objects. ${last}`,
        content: { "application/json": Type.Array(OperationEvent), "text/event-stream": Type.String() },
      },
    },
    errors: ["not_found", "too_many_requests"],
  }),
});

export function eventRoutes<const Prefix extends string>(surface: Surface, source: EventSource<Prefix>) {
  const text = new EventText();
  const shared = new SharedFrames((events: readonly LogEvent[]) => text.frames(events));
  return new Elysia({ prefix: source.prefix }).use(surface.access).get(
    "/events",
    async ({ request, principal, isAllowed, params, query }) => {
      const isJson = prefersJson(request.headers.get("accept"));
      const { spid, follow = false, limit } = checkedQuery(query, isJson);
      // Clients that begin to follow together would otherwise be answered in one turn of the event loop.
      await ownTurn(principal.accountId);
      const since = lastEventId(request) ?? query.since ?? -1;
      const left = new AbortController();
      request.signal.addEventListener("abort", () => left.abort(), { once: true });
      const filter = { since, follow, spid, limit, signal: left.signal };
      if (!isJson) {
        const events = source.open(principal, params, filter);
        const frames = (batch: readonly LogEvent[]) => shared.of(batch);
        return respond(eventStream({ events, frames, left, isAllowed, idleMs: IDLE_MS }), request);
      }
      const events = await source.openArray(principal, params, filter);
      return respond(await streamed(JSON_TYPE, arrayText(events, text), events), request);
    },
    { reads: "operations:read", ...EVENTS(source) },
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

async function* arrayText(events: EventStream, text: EventText): AsyncGenerator<string, void, undefined> {
  let separator = "[";
  for (let batch = await events.next(); batch !== null; batch = await events.next()) {
    yield separator + text.items(batch);
    separator = ",";
  }
  yield separator === "[" ? "[]" : "]";
}
