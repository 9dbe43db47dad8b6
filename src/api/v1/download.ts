import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { ByteRange } from "../../domain/byte-range.ts";
import { ApiError } from "../../domain/errors.ts";
import { displayName, type GuestPath, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import type { OpenFile } from "../../service/inspect.ts";
import { BINARY_TYPE, contentTypeOf } from "../content-type.ts";
import { matchesAny, parseRange } from "../range.ts";
import { empty, type Reply, respond, TEXT_TYPE } from "../reply.ts";
import { about, checked } from "../route.ts";
import { directStream } from "../stream.ts";
import { DownloadQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

/** Smaller answers are read at once, so that they carry their length. */
const BUFFERED_BYTES_MAX = 1_048_576;

const Content = Type.String({ format: "binary", description: "bytes of the file" });
const CONTENT_HEADERS = {
  ETag: "strong tag of the content",
  "Accept-Ranges": "bytes",
  "Last-Modified": "modification time of the file",
};

const DOWNLOAD = {
  query: checked(DownloadQuery),
  ...about({
    id: "downloadFile",
    tag: "Inspection",
    summary: "Download a file of an image, or one range of it",
    responses: {
      200: { description: "the file", content: { "*/*": Content }, headers: CONTENT_HEADERS },
      206: {
        description: "the range that was asked for",
        content: { "*/*": Content },
        headers: { ...CONTENT_HEADERS, "Content-Range": "which part of the file this is" },
      },
      304: { description: "the content that the client has is the current one", headers: CONTENT_HEADERS },
    },
    errors: ["not_found", "invalid_path", "range_not_satisfiable"],
  }),
};

export function downloadRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" }).use(surface.access).get(
    "/download",
    async ({ request, principal, params, query }) => {
      const path = parseGuestPath(query.path);
      const wanted = { id: params.uuid as ImageId, path, signal: request.signal };
      const file = await surface.service.inspect.open(principal, wanted);
      const reply = await download(file, path, { asked: request.headers, text: query.text === true });
      return respond(reply, request);
    },
    { reads: "images:read", ...DOWNLOAD },
  );
}

async function download(
  file: OpenFile,
  path: GuestPath,
  { asked, text }: { readonly asked: Headers; readonly text: boolean },
): Promise<Reply> {
  using undo = new DisposableStack();
  undo.use(file.held);
  const { entry, held } = file;
  const etag = etagOf(file.imageId, path);
  const headers: Record<string, string> = {
    "content-type": text ? TEXT_TYPE : typeOf(path, entry.path),
    "accept-ranges": "bytes",
    "cache-control": "private, no-cache",
    // A page of a sandbox must not run as a page of ours.
    "content-security-policy": "default-src 'none'; sandbox",
    etag,
    "last-modified": new Date(Math.max(0, Math.min(entry.mtimeSeconds, HTTP_TIME_SECONDS_MAX)) * 1000).toUTCString(),
  };
  if (matchesAny(asked.get("if-none-match"), etag)) return empty(304, headers);
  const ifRange = asked.get("if-range");
  const wanted = ifRange === null || ifRange.trim() === etag ? asked.get("range") : null;
  const range = parseRange(wanted, entry.size);
  if (range === "unsatisfiable") {
    throw new ApiError("range_not_satisfiable", `the file has ${entry.size} bytes`, { size_bytes: entry.size });
  }
  const part = range ?? { start: 0, end: entry.size };
  if (range !== null) headers["content-range"] = `bytes ${part.start}-${part.end - 1}/${entry.size}`;
  const bodyBytes = part.end - part.start;
  const body = await contentOf(file, part);
  // A stream lets go of the layers at its own end. The server opens a file in the turn in which it gets the answer, and
  // once it has, the file may be removed.
  if (body instanceof ReadableStream) undo.move();
  else if (body instanceof Blob) {
    undo.move();
    setImmediate(() => held[Symbol.dispose]());
  }
  return { status: range === null ? 200 : 206, headers, body, bodyBytes };
}

/**
 * A small part is read at once. A large one is sent by the kernel where it lies in one piece, so that it carries
 * its length; otherwise it is streamed.
 */
async function contentOf(file: OpenFile, part: ByteRange): Promise<Reply["body"]> {
  if (part.end - part.start <= BUFFERED_BYTES_MAX) return await file.read(part);
  const place = await file.locate(part);
  if (place !== null) return Bun.file(place.disk).slice(place.start, place.start + part.end - part.start);
  return directStream(file.chunks(part), file.held);
}

/** By the name that was asked for, or else by that of the file where symlinks led. */
function typeOf(...paths: GuestPath[]): string {
  const types = paths.map((path) => contentTypeOf(displayName(path).split("/").at(-1) ?? ""));
  return types.find((type) => type !== BINARY_TYPE) ?? BINARY_TYPE;
}

/** The end of the year 9999: HTTP dates have four digits. */
const HTTP_TIME_SECONDS_MAX = 253_402_300_799;

/** An image never changes, so that its id and the path stand for the content. */
function etagOf(imageId: ImageId, path: GuestPath): string {
  const digest = new Bun.CryptoHasher("sha256").update(path, "latin1").digest("hex");
  return `"${imageId}-${digest.slice(0, 32)}"`;
}
