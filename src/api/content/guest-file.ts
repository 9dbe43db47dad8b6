import { ApiError } from "../../domain/errors.ts";
import type { GuestEntry } from "../../domain/tree/guest-file.ts";
import type { GuestPath } from "../../domain/tree/guest-path.ts";
import type { ReadGuestFile } from "../../service/running/held-stream.ts";
import { matchesAny, parseRange } from "../range.ts";
import { empty, type Reply } from "../reply.ts";
import { directStream, type Endable } from "../stream/direct.ts";
import { gzipChunks } from "../stream/gzip.ts";
import { fileHeaders, typeOf } from "./download.ts";

/** Contents of at most this size are read into memory before they are sent, so that the response has a length. */
const BUFFERED_BYTES_MAX = 65_536;
const NS_PER_SECOND = 1_000_000_000n;

/** The bytes that a request asks for. */
export interface RequestedPart {
  readonly offset: number;
  readonly length: number;
}

/**
 * The part that a Range header asks for; null: all. A file without a size, as in /proc, is always sent whole.
 * @throws ApiError `range_not_satisfiable`
 */
export function requestedPart(header: string | null, { size }: GuestEntry): RequestedPart | null {
  if (size === null || size === 0) return null;
  const range = parseRange(header, size);
  if (range !== "unsatisfiable") return range && { offset: range.start, length: range.end - range.start };
  throw new ApiError("range_not_satisfiable", `the file has ${size} bytes`, { size_bytes: size });
}

/** The reply to HEAD. The length is left out for a file that may have another one when it is read. */
export function guestFileHead(entry: GuestEntry, path: GuestPath, asked: Headers): Reply {
  if (entry.type !== "f") throw new ApiError("invalid_path", "not a regular file", {});
  const headers = headersOf(entry, path);
  if (isCurrent(entry, asked)) return empty(304, headers);
  return { status: 200, headers, body: new ReadableStream(), ...(entry.size ? { bodyBytes: entry.size } : {}) };
}

export interface FileReplyOptions {
  readonly asked: Headers;
  readonly part: RequestedPart | null;
  readonly gzips?: boolean;
}

/**
 * The reply with a running instance's file. Takes over `file`, whose signal must fire when the client leaves.
 * @param part the part that was opened; null: all
 * @param gzips whether the bytes are compressed, if all are sent
 */
export async function guestFileReply(
  file: ReadGuestFile,
  path: GuestPath,
  { asked, part, gzips = false }: FileReplyOptions,
): Promise<Reply> {
  using undo = new DisposableStack();
  undo.use(file);
  const { entry } = file;
  const headers = headersOf(entry, path);
  if (part === null && isCurrent(entry, asked)) return empty(304, headers);
  if (part !== null) headers["content-range"] = rangeOf(part, entry);
  const status = part === null ? 200 : 206;
  const chunks = part === null ? encoded(file.items, gzips) : whole(file.items, part.length);
  if (part === null && gzips) headers["content-encoding"] = "gzip";
  const first: Uint8Array[] = [];
  let bytes = 0;
  while (bytes <= BUFFERED_BYTES_MAX) {
    const step = await chunks.next();
    if (step.done === true) return { status, headers, body: new Uint8Array(Buffer.concat(first)) };
    first.push(step.value);
    bytes += step.value.byteLength;
  }
  undo.move();
  return { status, headers, body: directStream(endable(first, chunks), file) };
}

function headersOf(entry: GuestEntry, path: GuestPath): Record<string, string> {
  const seconds = Number(entry.mtimeNs / NS_PER_SECOND);
  return {
    ...fileHeaders(seconds),
    "content-type": typeOf(path),
    etag: `W/${tagOf(entry)}`,
    "x-mode": entry.mode.toString(8).padStart(4, "0"),
  };
}

/** Identifies the state of a file; a program may write to it without a new one. */
function tagOf({ inode, mtimeNs, size }: GuestEntry): string {
  return `"${inode.toString(16)}-${mtimeNs.toString(16)}-${(size ?? 0).toString(16)}"`;
}

function isCurrent(entry: GuestEntry, asked: Headers): boolean {
  return entry.size !== null && entry.size > 0 && matchesAny(asked.get("if-none-match"), tagOf(entry));
}

/** @throws ApiError `range_not_satisfiable` when the file has become shorter since its size was read */
function rangeOf({ offset, length }: RequestedPart, { size }: GuestEntry): string {
  if (size !== null && offset + length <= size) return `bytes ${offset}-${offset + length - 1}/${size}`;
  throw new ApiError("range_not_satisfiable", `the file has ${size} bytes`, { size_bytes: size ?? 0 });
}

/** The chunks, compressed if need be. */
function encoded(chunks: AsyncGenerator<Uint8Array, void, undefined>, gzips: boolean) {
  return gzips ? (gzipChunks(chunks) as AsyncGenerator<Uint8Array, void, undefined>) : chunks;
}

/** The chunks. @throws ApiError when they do not have the number of `bytes` that the header announced */
async function* whole(
  chunks: AsyncGenerator<Uint8Array, void, undefined>,
  bytes: number,
): AsyncGenerator<Uint8Array, void, undefined> {
  let leftBytes = bytes;
  for await (const chunk of chunks) {
    leftBytes -= chunk.byteLength;
    yield chunk;
  }
  if (leftBytes !== 0) throw new ApiError("conflict", "the file became shorter while it was read");
}

/** The first chunks and the others. */
function endable(first: Uint8Array[], chunks: AsyncGenerator<Uint8Array, void, undefined>): Endable {
  const next = async () => {
    const chunk = first.shift();
    const step = chunk === undefined ? await chunks.next() : { done: false as const, value: chunk };
    return step as IteratorResult<Uint8Array<ArrayBuffer>, undefined>;
  };
  const end = async () => {
    await chunks.return();
    return { done: true as const, value: undefined };
  };
  return { [Symbol.asyncIterator]: () => ({ next, return: end }), return: end };
}
