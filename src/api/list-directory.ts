import { Type } from "@sinclair/typebox";
import { displayName, type GuestPath, parseGuestPath } from "../domain/guest-path.ts";
import { DirectoryListing, type Entry } from "../domain/listing.ts";
import { listingItem, listingLine } from "../domain/listing-format.ts";
import { ListQuery } from "../domain/query.ts";
import { heldTreeOf, requireImage } from "./image-access.ts";
import { JSON_TYPE, type Reply, TEXT_TYPE } from "./reply.ts";
import { type Route, route } from "./route.ts";
import type { ApiServices } from "./services.ts";

/** Text gathered before it is sent, in characters. */
const CHUNK_CHARACTERS = 65_536;

export function listDirectoryRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/inspect/:uuid/list",
    scope: "images:read",
    id: "listDirectory",
    tag: "Inspection",
    summary: "List a directory of an image",
    query: ListQuery,
    responses: {
      200: {
        description: "the entries; with text=true one line an entry: mode, links, uid, gid, size, time, name",
        content: { "application/json": DirectoryListing, "text/plain": Type.String() },
      },
    },
    errors: ["not_found", "invalid_path"],
    handle: ({ principal, params, query }) => {
      const path = parseGuestPath(query.path);
      const image = requireImage(services, principal, params["uuid"] ?? "");
      using undo = new DisposableStack();
      const { tree, held } = heldTreeOf(services, image);
      undo.use(held);
      const entries = tree.list(path);
      undo.move();
      return query.text === true
        ? streamed(TEXT_TYPE, textLines(entries), held)
        : streamed(JSON_TYPE, jsonParts(path, entries), held);
    },
  });
}

async function* textLines(entries: AsyncIterable<Entry>): AsyncGenerator<string> {
  for await (const entry of entries) yield listingLine(entry);
}

async function* jsonParts(path: GuestPath, entries: AsyncIterable<Entry>): AsyncGenerator<string> {
  yield `{"path":${JSON.stringify(displayName(path))},"items":[`;
  let separator = "";
  for await (const entry of entries) {
    yield separator + JSON.stringify(listingItem(entry));
    separator = ",";
  }
  yield "]}";
}

/**
 * A directory can have more entries than are good for the memory at once; a small listing is sent in one piece.
 * `held` is disposed at the end, however it comes.
 */
export async function streamed(contentType: string, parts: AsyncGenerator<string>, held: Disposable): Promise<Reply> {
  using undo = new DisposableStack();
  undo.use(held);
  const headers = { "content-type": contentType, "cache-control": "no-store" };
  const first = await gather(parts);
  if (first.done) return { status: 200, headers, body: first.text };
  undo.move();
  const encoder = new TextEncoder();
  let pending = first.text;
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      if (pending !== "") {
        controller.enqueue(encoder.encode(pending));
        pending = "";
        return;
      }
      const { text, done } = await gather(parts).catch((error: unknown) => {
        held[Symbol.dispose]();
        throw error;
      });
      if (text !== "") controller.enqueue(encoder.encode(text));
      if (!done) return;
      held[Symbol.dispose]();
      controller.close();
    },
    async cancel() {
      // A gather that is under way still reads: its end comes first.
      using _held = held;
      await parts.return(undefined);
    },
  });
  return { status: 200, headers, body };
}

async function gather(parts: AsyncGenerator<string>): Promise<{ text: string; done: boolean }> {
  let text = "";
  while (text.length < CHUNK_CHARACTERS) {
    const step = await parts.next();
    if (step.done === true) return { text, done: true };
    text += step.value;
  }
  return { text, done: false };
}
