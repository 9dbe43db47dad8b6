import type { LogEvent } from "../../domain/log-event.ts";
import type { OutputStream } from "../../domain/output.ts";
import type { EventFile } from "./event-file.ts";
import type { EventPosition } from "./position.ts";
import { FILE_MAGIC, HEADER_BYTES, readRecord, readSize, readSpid, readStream } from "./record.ts";

/** Bytes that are read at a time; a record that is needed whole fits. */
const BLOCK_BYTES = 262_144;

/** An event that is not an output. */
export interface ScannedEvent extends LogEvent {
  /** offset of the event in the file, in `bytes` */
  readonly offset: number;
}

/**
 * Called with each output, before the events of the same array are returned. Not an object: a log can have millions of outputs.
 * @param bytes size of the output
 * @param id of its event
 * @param offset of its event in the file, in `bytes`
 */
export type OutputVisitor = (
  spid: number | null,
  stream: OutputStream,
  bytes: number,
  id: number,
  offset: number,
) => void;

/**
 * Finds the events between a position and `endBytes`, in arrays whose payloads are valid until the next one is requested.
 * Outputs are only counted: long ones are not read, and their checksums are not checked.
 */
export async function* scanEvents(
  file: EventFile,
  from: EventPosition,
  endBytes: number,
  onOutput: OutputVisitor,
): AsyncGenerator<readonly ScannedEvent[], void, undefined> {
  const block = Buffer.allocUnsafeSlow(BLOCK_BYTES);
  let position = from;
  if (from.offset === FILE_MAGIC.byteLength) {
    const magic = block.subarray(0, from.offset);
    await file.read(magic, 0);
    if (!magic.equals(FILE_MAGIC)) return;
  }
  while (endBytes - position.offset >= HEADER_BYTES) {
    const bytes = block.subarray(0, Math.min(BLOCK_BYTES, endBytes - position.offset));
    const part = bytes.subarray(0, await file.read(bytes, position.offset));
    const { events, next } = scanBlock(part, position, endBytes, onOutput);
    if (next.id > position.id) yield events;
    // Events are missing where the first ones of a ring were dropped.
    const following = next.id > position.id ? next : file.after(position);
    if (following === null) return;
    position = following;
  }
}

/** The events that begin in the block, up to the first one that it does not contain completely. */
function scanBlock(
  block: Buffer,
  start: EventPosition,
  endBytes: number,
  onOutput: OutputVisitor,
): { readonly events: readonly ScannedEvent[]; readonly next: EventPosition } {
  const events: ScannedEvent[] = [];
  for (let { id, offset } = start; ; id++) {
    const at = offset - start.offset;
    const bytes = readSize(block, at, id);
    if (bytes === null || offset + HEADER_BYTES + bytes > endBytes) return { events, next: { id, offset } };
    const stream = readStream(block, at);
    if (stream !== null) onOutput(readSpid(block, at), stream, bytes, id, offset);
    else {
      const record = readRecord(block, at, id);
      if (record === "partial" || record === "damaged") return { events, next: { id, offset } };
      events.push({ ...record, offset });
    }
    offset += HEADER_BYTES + bytes;
  }
}
