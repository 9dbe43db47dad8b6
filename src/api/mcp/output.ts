import type { OperationId } from "../../domain/ids.ts";
import { Spid } from "../../domain/log-event.ts";
import type { OutputStream } from "../../domain/output.ts";
import type { Operation } from "../../service/operations.ts";
import type { Principal } from "../../service/parts.ts";
import type { Service } from "../../service/service.ts";
import { type Content, text } from "./answer.ts";
import { HeadAndTail, isBinary, outputText, shownBytes, Tail } from "./text.ts";

/** Bounds of the outputs in an answer, in `bytes`. */
export const SHOWN_BYTES_DEFAULT = 8192;
export const SHOWN_BYTES_MAX = 65_536;

/** The part of a call that is needed to read. */
export interface Reading {
  readonly service: Service;
  readonly principal: Principal;
  readonly signal: AbortSignal;
}

/**
 * An output of the command of an instance so far, in chunks that are valid until the next one is requested.
 * @throws as `operations.outputs` and `operations.events` do
 */
export async function* outputChunks(
  reading: Reading,
  operation: Operation,
  stream: OutputStream,
): AsyncGenerator<Uint8Array, void, undefined> {
  const { service, principal, signal } = reading;
  if (operation.kind !== "instance") return;
  if (operation.status !== "SUCCESS") {
    yield* loggedChunks(reading, operation.id, stream);
    return;
  }
  using outputs = await service.operations.outputs(principal, operation, signal);
  const output = await outputs.read(stream);
  if (output.kind === "short") yield output.bytes;
  else {
    using long = output;
    for await (const piece of long.pieces()) yield piece;
  }
}

async function* loggedChunks(
  { service, principal, signal }: Reading,
  id: OperationId,
  stream: OutputStream,
): AsyncGenerator<Uint8Array, void, undefined> {
  using events = service.operations.events(principal, { id, since: -1, follow: false, spid: Spid.command, signal });
  for (let batch = await events.next(); batch !== null; batch = await events.next()) {
    for (const { type, payload } of batch) if (type === stream) yield payload;
  }
}

/** A part of a content. */
export interface ContentRange {
  readonly bytes: Uint8Array;
  /** position of its first byte in the content */
  readonly start: number;
  /** of the whole content */
  readonly totalBytes: number;
}

/**
 * A range of a content, at most `length` bytes. A negative offset counts from the end, and is at least -SHOWN_BYTES_MAX.
 * @param chunks are copied, because their memory may be reused
 */
export async function rangeOf(
  chunks: AsyncIterable<Uint8Array>,
  { offset, length }: { readonly offset: number; readonly length: number },
): Promise<ContentRange> {
  let totalBytes = 0;
  let keptBytes = 0;
  const parts: Buffer[] = [];
  const tail = new Tail(Math.min(-offset, SHOWN_BYTES_MAX));
  for await (const chunk of chunks) {
    if (offset < 0) tail.push(chunk);
    else {
      const part = chunk.subarray(Math.max(0, offset - totalBytes)).subarray(0, length - keptBytes);
      if (part.byteLength > 0) parts.push(Buffer.from(part));
      keptBytes += part.byteLength;
    }
    totalBytes += chunk.byteLength;
  }
  if (offset >= 0) return { bytes: Buffer.concat(parts), start: Math.min(offset, totalBytes), totalBytes };
  const last = tail.take();
  return { bytes: last.subarray(0, length), start: totalBytes - last.byteLength, totalBytes };
}

/** The address at which a client can read all of an output. */
export function outputUri(id: string, stream: OutputStream): string {
  return `coppice://operations/${id}/${stream}`;
}

export interface ShownOutput {
  readonly items: readonly Content[];
  readonly totalBytes: number;
}

/** The beginning and the end of an output, at most `bytesMax` together; nothing when it is empty. */
export async function shownOutput(
  reading: Reading,
  operation: Operation,
  { stream, bytesMax }: { readonly stream: OutputStream; readonly bytesMax: number },
): Promise<ShownOutput> {
  const kept = new HeadAndTail(bytesMax);
  for await (const chunk of outputChunks(reading, operation, stream)) kept.push(chunk);
  const { totalBytes } = kept;
  const uri = outputUri(operation.id, stream);
  const link: Content = { type: "resource_link", uri, name: stream, size: totalBytes };
  const { head, omittedBytes } = kept.parts();
  const isAll = omittedBytes === 0 && !isBinary(head);
  const rest = isBinary(head) ? `${uri} has it` : `read_output with offset ${head.byteLength} has them`;
  return { items: [...shownKept(stream, kept, rest), ...(isAll ? [] : [link])], totalBytes };
}

/** The kept parts of an output as text; nothing when it is empty. @param rest what has the parts that are not shown */
export function shownKept(stream: OutputStream, kept: HeadAndTail, rest: string): Content[] {
  const { totalBytes } = kept;
  if (totalBytes === 0) return [];
  const { head, tail, omittedBytes } = kept.parts();
  if (isBinary(head)) return [text(`${stream}: binary, ${shownBytes(totalBytes)}; ${rest}`)];
  if (omittedBytes === 0) return [text(`${stream} (${shownBytes(totalBytes)}):\n${outputText(head)}`)];
  const omitted = `${shownBytes(omittedBytes)} are left out here: ${rest}. The end:\n`;
  return [
    text(`${stream} (${shownBytes(totalBytes)}), its beginning:\n${outputText(head)}`),
    text(`${omitted}${outputText(tail)}`),
  ];
}
