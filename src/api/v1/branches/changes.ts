import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { allows } from "../../../domain/scope.ts";
import type { Change } from "../../../service/branches/change-stream.ts";
import { eventStream, SharedFrames } from "../../output/event-stream.ts";
import { respond } from "../../reply.ts";
import { about } from "../../route.ts";
import type { Surface } from "../surface.ts";
import { imageRow, operationRow } from "./rows.ts";

/** Longest time without anything in a stream, in `milliseconds`. */
const IDLE_MS = 15_000;

const CHANGES = {
  ...about({
    id: "followChanges",
    tag: "Images",
    summary: "Follow the changes of operations and images, from now on",
    responses: {
      200: {
        description:
          "server-sent events of the types `operation` and `image`, which have a row of the branches as data, " +
          "`deleted`, which has the `uuid` of an image, and `resync`: first of all, and whenever changes were left out. " +
          "Operations are left out if the token lacks operations:read",
        content: { "text/event-stream": Type.String() },
      },
    },
    errors: ["too_many_requests"],
  }),
};

export function changeRoutes(surface: Surface) {
  const shared = new SharedFrames(framesOf);
  return new Elysia().use(surface.access).get(
    "/changes",
    ({ request, principal, isAllowed }) => {
      const left = new AbortController();
      request.signal.addEventListener("abort", () => left.abort(), { once: true });
      const events = surface.service.branches.changes(principal, left.signal);
      const withOperations = allows(principal.grants, "operations:read");
      const frames = withOperations
        ? (changes: readonly Change[]) => shared.of(changes)
        : (changes: readonly Change[]) => framesOf(changes.filter(({ type }) => type !== "operation"));
      return respond(eventStream({ events, frames, left, isAllowed, idleMs: IDLE_MS }), request);
    },
    { reads: "images:read", ...CHANGES },
  );
}

const encoder = new TextEncoder();

function framesOf(changes: readonly Change[]): Uint8Array<ArrayBuffer> {
  return encoder.encode(changes.map(frameOf).join(""));
}

function frameOf(change: Change): string {
  return `event: ${change.type}\ndata: ${JSON.stringify(dataOf(change))}\n\n`;
}

function dataOf(change: Change): object {
  if (change.type === "operation") return operationRow(change.operation);
  if (change.type === "image") return imageRow(change.image);
  return change.type === "deleted" ? { type: "deleted", uuid: change.id } : change;
}
