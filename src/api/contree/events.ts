import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { LogEvent } from "../../domain/log-event.ts";
import type { Principal } from "../../service/parts.ts";
import { ownTurn } from "../../system/turns.ts";
import { eventStream, LAST_EVENT_ID, lastEventId, SharedFrames } from "../output/event-stream.ts";
import { respond } from "../reply.ts";
import { about, checked } from "../route.ts";
import { EventFrames, failureFrames } from "./event-frames.ts";
import { resultImage } from "./operation-wire.ts";
import { EventsQuery } from "./schema/events.ts";
import type { ContreeSurface } from "./surface.ts";

/** Longest silence of a stream, in `milliseconds`: clients give up after 15 s. */
const IDLE_MS = 10_000;
const NO_FRAMES = new Uint8Array();

const EVENTS = {
  query: checked(EventsQuery),
  ...about({
    id: "contreeOperationEvents",
    tag: "ConTree",
    summary: "Read or follow the events of an operation, of which `completion` is the last, or those of one process",
    requestHeaders: { [LAST_EVENT_ID]: "only events with greater ids; takes precedence over `since`" },
    responses: {
      200: {
        description: "server-sent events; the ids of events that this API does not have are missing",
        content: { "text/event-stream": Type.String() },
      },
    },
    errors: ["not_found", "too_many_requests"],
  }),
};

export function eventRoutes(surface: ContreeSurface) {
  const frames = new EventFrames();
  const shared = new SharedFrames((events: readonly LogEvent[]) => frames.of(events));
  return new Elysia({ prefix: "/operations" }).use(surface.access).get(
    "/:id/events",
    async ({ request, principal, isAllowed, params, query: { spid, follow = false, since = -1 } }) => {
      // Clients that begin to follow together would otherwise be answered in one turn of the event loop.
      await ownTurn(principal.accountId);
      const left = new AbortController();
      request.signal.addEventListener("abort", () => left.abort(), { once: true });
      const query = { id: params.id as OperationId, since: lastEventId(request) ?? since, follow, spid };
      const events = surface.service.operations.events(principal, { ...query, signal: left.signal });
      const framesOf = (batch: readonly LogEvent[]) => {
        const [first] = batch;
        if (first?.type !== "completion") return shared.of(batch);
        // It belongs to no process. A stream of one process ends without it.
        return spid === undefined ? frames.completion(first, resultBytes(surface, principal, query.id)) : NO_FRAMES;
      };
      const failure = (error: unknown) =>
        failureFrames(error instanceof ApiError ? error.message : "the events could not be read");
      const stream = { events, frames: framesOf, failure, left, isAllowed, idleMs: IDLE_MS };
      return respond(eventStream(stream), request);
    },
    { reads: "operations:read", ...EVENTS },
  );
}

/** Size of the image of an operation's result, in `bytes`; 0 when there is none. */
function resultBytes({ service: { operations } }: ContreeSurface, principal: Principal, id: OperationId): number {
  const image = resultImage(operations.get(principal, id));
  return image === null ? 0 : (operations.imageSizes(principal, [image]).get(image) ?? 0);
}
