import { Type } from "@sinclair/typebox";
import type { ByteRange } from "../../domain/bytes/byte-range.ts";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId } from "../../domain/ids.ts";
import { displayName, type GuestPath } from "../../domain/tree/guest-path.ts";
import type { OpenFile } from "../../service/inspection/inspect.ts";
import { BINARY_TYPE, contentTypeOf } from "../content-type.ts";
import { matchesAny, parseRange } from "../range.ts";
import { empty, type Reply, TEXT_TYPE } from "../reply.ts";
import { directStream } from "../stream/direct.ts";

/** Parts of at most this size are read into memory before they are sent, so that the response has a length. */
const BUFFERED_BYTES_MAX = 1_048_576;

const FileBytes = Type.String({ format: "binary", description: "bytes of the file" });
/** The content of a file in the API description: the extension decides its type; generators use the first one here. */
export const FILE_CONTENT = { [BINARY_TYPE]: FileBytes, "*/*": FileBytes };

/**
 * The responses of a route that sends a file, and the headers of all of them.
 * @param etag what the entity tag stands for
 */
export function fileResponses(etag: string, more: Readonly<Record<string, string>> = {}) {
  const headers = {
    ETag: etag,
    "Accept-Ranges": "bytes",
    "Last-Modified": "modification time of the file",
    ...more,
  };
  return {
    200: { description: "the file", content: FILE_CONTENT, headers },
    206: {
      description: "the requested range",
      content: FILE_CONTENT,
      headers: { ...headers, "Content-Range": "the range within the file" },
    },
    304: { description: "the client has the current content", headers },
  };
}

export interface DownloadRequest {
  /** headers of the request, for ranges and the client's cache */
  readonly asked: Headers;
  /** true: the content type is text/plain */
  readonly text: boolean;
}

/**
 * The reply with a file, or with the part that the request asks for. Takes over `file`.
 * @throws ApiError `range_not_satisfiable`; as `OpenFile.stream` does
 */
export async function downloadReply(file: OpenFile, path: GuestPath, { asked, text }: DownloadRequest): Promise<Reply> {
  using undo = new DisposableStack();
  undo.use(file.held);
  const { entry, held } = file;
  const etag = etagOf(file.imageId, path);
  const headers: Record<string, string> = {
    ...fileHeaders(entry.mtimeSeconds),
    "content-type": text ? TEXT_TYPE : typeOf(path, entry.path),
    etag,
  };
  if (matchesAny(asked.get("if-none-match"), etag)) return empty(304, headers);
  const ifRange = asked.get("if-range");
  const header = ifRange === null || ifRange.trim() === etag ? asked.get("range") : null;
  const range = parseRange(header, entry.size);
  if (range === "unsatisfiable") {
    throw new ApiError("range_not_satisfiable", `the file has ${entry.size} bytes`, { size_bytes: entry.size });
  }
  const part = range ?? { start: 0, end: entry.size };
  if (range !== null) headers["content-range"] = `bytes ${part.start}-${part.end - 1}/${entry.size}`;
  const bodyBytes = part.end - part.start;
  const body = await contentOf(file, part);
  // A stream disposes of `held` when it ends. Bun opens the file of a Blob in the turn in which it gets the response; after
  // that, the file may be removed.
  if (body instanceof ReadableStream) undo.move();
  else if (body instanceof Blob) {
    undo.move();
    setImmediate(() => held[Symbol.dispose]());
  }
  return { status: range === null ? 200 : 206, headers, body, bodyBytes };
}

/**
 * Reads a small part into memory. A large part that is contiguous on the host is sent from its file by the kernel, with a
 * length; any other is streamed.
 */
async function contentOf(file: OpenFile, part: ByteRange): Promise<Reply["body"]> {
  if (part.end - part.start <= BUFFERED_BYTES_MAX) return await file.read(part);
  const place = await file.locate(part);
  if (place !== null) return Bun.file(place.disk).slice(place.start, place.start + part.end - part.start);
  const { chunks, held } = await file.stream(part);
  return directStream(chunks, held);
}

/** Headers of every file. @param mtimeSeconds modification time in `seconds` since the epoch */
export function fileHeaders(mtimeSeconds: number): Record<string, string> {
  return {
    "accept-ranges": "bytes",
    "cache-control": "private, no-cache",
    // A browser must not run an HTML page of a sandbox in the origin of this service.
    "content-security-policy": "default-src 'none'; sandbox",
    "last-modified": httpTime(mtimeSeconds),
  };
}

/** Content type by the first path that has a known extension. */
export function typeOf(...paths: GuestPath[]): string {
  const types = paths.map((path) => contentTypeOf(displayName(path).split("/").at(-1) ?? ""));
  return types.find((type) => type !== BINARY_TYPE) ?? BINARY_TYPE;
}

/** The end of the year 9999: HTTP dates have four digits. */
const HTTP_TIME_SECONDS_MAX = 253_402_300_799;

/** The nearest date that HTTP has. @param seconds since the epoch */
export function httpTime(seconds: number): string {
  return new Date(Math.max(0, Math.min(seconds, HTTP_TIME_SECONDS_MAX)) * 1000).toUTCString();
}

/** Images are immutable, so the image's id and the path identify the content. */
export function etagOf(imageId: ImageId, path: GuestPath): string {
  const digest = new Bun.CryptoHasher("sha256").update(path, "latin1").digest("hex");
  return `"${imageId}-${digest.slice(0, 32)}"`;
}
