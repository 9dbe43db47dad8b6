import { ownTurn } from "../../system/turns.ts";
import { type Fields, type RequestHead, type ResponseHead, readFields, valuesOf } from "./head.ts";
import { type ByteReader, MessageError } from "./reader.ts";

/** The extent of a body; `close`: up to the end of the connection. */
export type Framing =
  | { readonly kind: "length"; readonly bytes: number }
  | { readonly kind: "chunked" }
  | { readonly kind: "close" };

export const NO_BODY: Framing = { kind: "length", bytes: 0 };

/** Largest line with the size of a chunk, in `bytes`: most of it is for extensions, which are dropped. */
const SIZE_LINE_BYTES_MAX = 128;
/** Largest trailer section, in `bytes`; it is dropped. */
const TRAILERS_BYTES_MAX = 8192;
const sizeExpression = /^([0-9a-fA-F]{1,12})(?:[\t ]*;.*)?$/;
const INCOMPLETE = "the body is incomplete";
/** Chunks are joined up to about this size, in `bytes`. */
const JOINED_BYTES = 16_384;
/** Chunks of a body that are read in one turn of the event loop. */
const TURN_CHUNKS_COUNT = 256;
const CRLF = Buffer.from("\r\n");

/** The last chunk, without trailers. */
export const LAST_CHUNK = Buffer.from("0\r\n\r\n");

/** The framing of a request's body. @throws MessageError when it is ambiguous or unknown */
export function requestFraming(head: RequestHead): Framing {
  return framingOf(head) ?? NO_BODY;
}

/**
 * The framing of the body of a final response.
 * @param method the method of its request
 * @throws MessageError when it is ambiguous or unknown
 */
export function responseFraming(head: ResponseHead, method: string): Framing {
  const framing = framingOf(head) ?? { kind: "close" };
  return method === "HEAD" || head.status === 204 || head.status === 304 ? NO_BODY : framing;
}

/** The value of Content-Length; null without one. @throws MessageError when there are several, or it is not a number */
export function contentLength(fields: Fields): number | null {
  const lengths = valuesOf(fields, "content-length");
  if (lengths.length === 0) return null;
  if (lengths.length > 1 || !/^\d{1,15}$/.test(lengths[0] ?? "")) {
    throw new MessageError(400, "Content-Length must be one number");
  }
  return Number(lengths[0]);
}

function framingOf({ version, fields }: { readonly version: 0 | 1; readonly fields: Fields }): Framing | null {
  const bytes = contentLength(fields);
  const codings = valuesOf(fields, "transfer-encoding");
  if (codings.length === 0) return bytes === null ? null : { kind: "length", bytes };
  if (bytes !== null) throw new MessageError(400, "a body has either a Content-Length or a Transfer-Encoding");
  if (version === 0) throw new MessageError(400, "HTTP/1.0 has no Transfer-Encoding");
  // Not as a list with empty members or in several fields, which a proxy in front may take for another coding.
  if (codings.length !== 1 || codings[0]?.toLowerCase() !== "chunked") {
    throw new MessageError(501, "the only Transfer-Encoding is chunked");
  }
  return { kind: "chunked" };
}

/** Reads a body, and what ends it. @throws MessageError when it is malformed or incomplete; as the source does */
export async function* bodyOf(reader: ByteReader, framing: Framing): AsyncGenerator<Uint8Array> {
  if (framing.kind === "length") yield* exactly(reader, framing.bytes);
  else if (framing.kind === "chunked") yield* chunksOf(reader);
  else for (let piece = await reader.some(); piece !== null; piece = await reader.some()) yield piece;
}

/** A chunk with these bytes, of which there is at least one. */
export function chunkOf(bytes: Uint8Array): Uint8Array {
  return Buffer.concat([Buffer.from(`${bytes.byteLength.toString(16)}\r\n`), bytes, CRLF]);
}

async function* exactly(reader: ByteReader, bytes: number): AsyncGenerator<Uint8Array> {
  for (let left = bytes; left > 0; ) {
    const piece = await reader.some(left);
    if (piece === null) throw new MessageError(400, INCOMPLETE);
    left -= piece.byteLength;
    yield piece;
  }
}

/** Small chunks that are here already are joined: each piece costs a message to the other side. */
async function* chunksOf(reader: ByteReader): AsyncGenerator<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let joinedBytes = 0;
  const joined = (): Uint8Array => {
    const bytes = pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : Buffer.concat(pieces);
    pieces.length = 0;
    joinedBytes = 0;
    return bytes;
  };
  for (let count = 1; ; count++) {
    if (pieces.length > 0 && (!reader.hasLine || joinedBytes >= JOINED_BYTES)) yield joined();
    if (count % TURN_CHUNKS_COUNT === 0) await ownTurn();
    const size = await sizeOfChunk(reader);
    if (size === 0) break;
    for (let left = size; left > 0; ) {
      if (pieces.length > 0 && reader.isEmpty) yield joined();
      const piece = await reader.some(left);
      if (piece === null) throw new MessageError(400, INCOMPLETE);
      left -= piece.byteLength;
      joinedBytes += piece.byteLength;
      pieces.push(piece);
    }
    if (!reader.hasLine) yield joined();
    if ((await reader.line(CRLF.byteLength)) !== "") throw new MessageError(400, "a chunk is longer than its size");
  }
  if (pieces.length > 0) yield joined();
  await readFields(reader, TRAILERS_BYTES_MAX);
}

async function sizeOfChunk(reader: ByteReader): Promise<number> {
  const [, digits] = sizeExpression.exec(await reader.line(SIZE_LINE_BYTES_MAX)) ?? [];
  if (digits === undefined) throw new MessageError(400, "the size of a chunk is malformed");
  return Number.parseInt(digits, 16);
}
