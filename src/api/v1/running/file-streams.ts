import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { GuestEntry as StoredEntry } from "../../../domain/tree/guest-file.ts";
import { type GuestPath, pathBelow } from "../../../domain/tree/guest-path.ts";
import type { WatchedEvent } from "../../../service/running/files.ts";
import type { HeldStream } from "../../../service/running/held-stream.ts";
import { eventStream } from "../../output/event-stream.ts";
import { NDJSON_TYPE, respond } from "../../reply.ts";
import { about, checked } from "../../route.ts";
import { streamed } from "../../stream/text.ts";
import { GuestFileEvent, ListFilesQuery, WatchQuery } from "../schema/guest-files.ts";
import type { Surface } from "../surface.ts";
import { entryOf, eventOf, requestIn } from "./file-wire.ts";
import type { Runner } from "./runner.ts";

/** Longest time without anything in a stream of events, in `milliseconds`. */
const IDLE_MS = 15_000;
const DEPTH_DEFAULT = 1;

const LIST = ({ id, one }: Runner<string>) => ({
  query: checked(ListFilesQuery),
  ...about({
    id: id("listGuestFiles"),
    tag: "Guest files",
    summary: `List a directory of ${one}: an object in each line, first that of the path itself, the last one of type \`end\``,
    responses: {
      200: {
        description:
          "entries, each directory before those in it, in no other order; the last line says with `truncated` whether " +
          "there are more",
        content: { [NDJSON_TYPE]: Type.String() },
      },
    },
    errors: ["not_found", "invalid_path", "conflict", "too_many_requests", "unavailable"],
  }),
});

const WATCH = ({ id, one }: Runner<string>) => ({
  query: checked(WatchQuery),
  ...about({
    id: id("watchGuestFiles"),
    tag: "Guest files",
    summary: `Follow the changes in a directory of ${one}`,
    responses: {
      200: {
        description:
          "server-sent events, each of which has such an object as data, and its type; the first is `ready`; `overflow` " +
          "means that events were lost",
        content: { "application/json": GuestFileEvent, "text/event-stream": Type.String() },
      },
    },
    errors: ["not_found", "invalid_path", "conflict", "too_many_requests", "unavailable"],
  }),
});

/** The files of what runs, as streams. */
export function fileStreamRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  const { guestFiles } = surface.service;
  const prefix = `${runner.prefix}/files` as const;
  return new Elysia({ prefix })
    .use(surface.access)
    .get(
      "/list",
      async ({ request, principal, params, query }) => {
        const { depth = DEPTH_DEFAULT, follow = false, limit = Number.POSITIVE_INFINITY } = query;
        const at = requestIn(runner, { request, principal, params, query });
        const listed = await guestFiles.list(principal, { ...at, depth, follow });
        return respond(await streamed(NDJSON_TYPE, linesOf(listed.items, at.path, limit), listed), request);
      },
      { reads: "instances:read", ...LIST(runner) },
    )
    .get(
      "/watch",
      async ({ request, principal, params, query, isAllowed }) => {
        const { recursive = false, entries = false } = query;
        const left = new AbortController();
        const signal = AbortSignal.any([request.signal, left.signal]);
        const at = { ...requestIn(runner, { request, principal, params, query }), signal };
        const watched = await guestFiles.watch(principal, { ...at, recursive, entries });
        const frames = (events: readonly WatchedEvent[]) =>
          ENCODER.encode(events.map((event) => frameOf(eventOf(event, at.path))).join(""));
        return respond(eventStream({ events: batches(watched), frames, left, isAllowed, idleMs: IDLE_MS }), request);
      },
      { reads: "instances:read", ...WATCH(runner) },
    );
}

const ENCODER = new TextEncoder();

/** A line for each entry, up to a number of them, and one about the end. */
async function* linesOf(
  entries: HeldStream<StoredEntry>["items"],
  directory: GuestPath,
  limit: number,
): AsyncGenerator<string, void, undefined> {
  let count = 0;
  for await (const entry of entries) {
    if (count === limit) return yield lineOf({ type: "end", truncated: true });
    count += 1;
    yield lineOf(entryOf(entry, pathBelow(directory, entry.path)));
  }
  yield lineOf({ type: "end", truncated: false });
}

function lineOf(value: object): string {
  return `${JSON.stringify(value)}\n`;
}

function frameOf(event: GuestFileEvent): string {
  return `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`;
}

/** The events one by one, as an event stream takes them. */
function batches({ items, [Symbol.dispose]: dispose }: HeldStream<WatchedEvent>) {
  return {
    async next() {
      const step = await items.next();
      return step.done === true ? null : [step.value];
    },
    [Symbol.dispose]: dispose,
  };
}
