import type { LogEvent } from "../../domain/log-event.ts";
import type { EventFile } from "./event-file.ts";
import type { EventPosition } from "./reader.ts";
import { FILE_MAGIC, HEADER_BYTES, readHead, readRecord } from "./record.ts";

/** Bytes that are read at a time; a record that is needed whole fits. */
const BLOCK_BYTES = 262_144;

/** An event, without the content of an output. */
export interface ScannedEvent extends LogEvent {
  /** size of the payload, which is empty here for an output, in `bytes` */
  readonly bytes: number;
  /** offset of the event in the file, in `bytes` */
  readonly offset: number;
}

const NO_CONTENT = new Uint8Array();

/**
 * Finds the events between a position and `endBytes`, in arrays whose payloads are valid until the next one is requested.
 * Outputs are skipped: neither are they read, where they are long, nor are their checksums checked.
 */
export async function* scanEvents(
  file: EventFile,
  from: EventPosition,
  endBytes: number,
): AsyncGenerator<readonly ScannedEvent[], void, undefined> {
  const block = Buffer.allocUnsafeSlow(BLOCK_BYTES);
  let { id, offset } = from;
  if (offset === FILE_MAGIC.byteLength) {
    const magic = block.subarray(0, offset);
    await file.read(magic, 0);
    if (!magic.equals(FILE_MAGIC)) return;
  }
  while (endBytes - offset >= HEADER_BYTES) {
    const bytes = block.subarray(0, Math.min(BLOCK_BYTES, endBytes - offset));
    const found = scanBlock(bytes.subarray(0, await file.read(bytes, offset)), { id, offset }, endBytes);
    const last = found.at(-1);
    if (last === undefined) return;
    yield found;
    id = last.id + 1;
    offset = last.offset + HEADER_BYTES + last.bytes;
  }
}

/** The events that begin in the block, up to the first one that cannot be known from it. */
function scanBlock(block: Buffer, start: EventPosition, endBytes: number): readonly ScannedEvent[] {
  const found: ScannedEvent[] = [];
  for (let { id, offset } = start; ; id++) {
    const at = offset - start.offset;
    const head = readHead(block, at, id);
    if (head === null || offset + HEADER_BYTES + head.bytes > endBytes) return found;
    if (head.type === "stdout" || head.type === "stderr") found.push({ ...head, payload: NO_CONTENT, offset });
    else {
      const record = readRecord(block, at, id);
      if (record === "partial" || record === "damaged") return found;
      found.push({ ...record, bytes: head.bytes, offset });
    }
    offset += HEADER_BYTES + head.bytes;
  }
}
