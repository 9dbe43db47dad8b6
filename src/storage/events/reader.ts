import type { LogEvent } from "../../domain/log-event.ts";
import type { EventFile } from "./event-file.ts";
import { type EventPosition, FIRST_POSITION } from "./position.ts";
import { FILE_MAGIC, HEADER_BYTES, PAYLOAD_BYTES_MAX, readRecord } from "./record.ts";

/**
 * A piece ends before a multiple of this offset, in `bytes`, so that readers that begin at different places soon read the
 * same pieces.
 */
const GRID_BYTES = 65_536;
/** It also ends before an event whose id is a multiple of this: readers block the event loop for each piece. */
const GRID_EVENTS_COUNT = 2048;
/** Largest piece, in `bytes`. */
const PIECE_BYTES_MAX = GRID_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX;

/** Reads events piece by piece, from any position. It holds no buffer between two calls, unless it reuses one. */
export class EventReader {
  readonly #file: EventFile;
  readonly #reused: Buffer | null;
  #position: EventPosition;
  #isDamaged = false;
  #isChecked: boolean;

  /** @param reuses true: all pieces are read to one buffer, and payloads are valid until the next call */
  constructor(file: EventFile, position: EventPosition = file.first, reuses = false) {
    this.#file = file;
    this.#reused = reuses ? Buffer.allocUnsafeSlow(PIECE_BYTES_MAX) : null;
    this.#position = position;
    // Other positions come from the writer of the log.
    this.#isChecked = position !== FIRST_POSITION;
  }

  /** Position of the next event. */
  get position(): EventPosition {
    return this.#position;
  }

  /** Continues at a position behind a damaged or dropped part. */
  skipTo(position: EventPosition): void {
    this.#position = position;
    this.#isDamaged = false;
  }

  /**
   * The next events, at most 96 KiB and 2048 of them; empty when no whole record lies before `endBytes`. A damaged record
   * ends the log. The payloads stay valid, unless the buffer is reused.
   */
  async next(endBytes: number): Promise<LogEvent[]> {
    const buffer = this.#buffer(endBytes);
    if (buffer === null) return [];
    return this.#take(buffer.subarray(0, await this.#file.read(buffer, this.#start)));
  }

  /** The same synchronously, for data in the page cache. */
  nextNow(endBytes: number): LogEvent[] {
    const buffer = this.#buffer(endBytes);
    if (buffer === null) return [];
    return this.#take(buffer.subarray(0, this.#file.readNow(buffer, this.#start)));
  }

  get #start(): number {
    return this.#isChecked ? this.#position.offset : 0;
  }

  #buffer(endBytes: number): Buffer | null {
    // Any record fits.
    const lastBytes = Math.ceil((this.#start + HEADER_BYTES + PAYLOAD_BYTES_MAX) / GRID_BYTES) * GRID_BYTES;
    const bytes = Math.min(lastBytes, endBytes) - this.#start;
    if (this.#isDamaged || bytes < HEADER_BYTES) return null;
    return this.#reused?.subarray(0, bytes) ?? Buffer.allocUnsafeSlow(bytes);
  }

  #take(piece: Buffer): LogEvent[] {
    let at = this.#checkMagic(piece);
    const events: LogEvent[] = [];
    while (!this.#isDamaged) {
      const record = readRecord(piece, at, this.#position.id);
      if (record === "partial") break;
      if (record === "damaged") {
        this.#isDamaged = true;
        break;
      }
      const bytes = HEADER_BYTES + record.payload.byteLength;
      at += bytes;
      this.#position = { id: this.#position.id + 1, offset: this.#position.offset + bytes };
      events.push(record);
      if (this.#position.id % GRID_EVENTS_COUNT === 0) break;
    }
    return events;
  }

  /** Offset of the first record in the piece. */
  #checkMagic(piece: Buffer): number {
    if (this.#isChecked) return 0;
    this.#isChecked = true;
    this.#isDamaged = !piece.subarray(0, FILE_MAGIC.byteLength).equals(FILE_MAGIC);
    return FILE_MAGIC.byteLength;
  }
}
