import type { LogEvent } from "../../domain/log-event.ts";
import type { EventFile } from "./event-file.ts";
import { FILE_MAGIC, HEADER_BYTES, readRecord } from "./record.ts";

/** Read at a time, in `bytes`: any record fits. */
const PIECE_BYTES = 65_536;
/** Between two entries of an index, in `bytes`. */
const INDEX_STEP_BYTES = 65_536;

/** Where an event begins in the file. */
export interface Place {
  readonly id: number;
  readonly offset: number;
}

export const FIRST_PLACE: Place = { id: 0, offset: FILE_MAGIC.byteLength };

/** Some places of a log that grows, so that nobody has to read what he does not want. */
export class PlaceIndex {
  readonly #places: Place[] = [FIRST_PLACE];

  /** Takes the place of an event behind all that are known. */
  add(place: Place): void {
    const last = this.#places.at(-1) ?? FIRST_PLACE;
    if (place.offset - last.offset >= INDEX_STEP_BYTES) this.#places.push(place);
  }

  /** The last place known that is not behind the event `id`. */
  before(id: number): Place {
    let low = 0;
    for (let high = this.#places.length; high - low > 1; ) {
      const middle = (low + high) >> 1;
      if ((this.#places[middle]?.id ?? 0) <= id) low = middle;
      else high = middle;
    }
    return this.#places[low] ?? FIRST_PLACE;
  }
}

/** Reads events one piece after the other, from any place on. Between two calls it holds nothing but its place. */
export class EventReader {
  readonly #file: EventFile;
  #place: Place;
  #isDamaged = false;
  #isChecked: boolean;

  constructor(file: EventFile, place: Place = FIRST_PLACE) {
    this.#file = file;
    this.#place = place;
    // Who knows a place has it from whoever wrote the file.
    this.#isChecked = place !== FIRST_PLACE;
  }

  /** Of the next event, whether it is there already or not. */
  get place(): Place {
    return this.#place;
  }

  /**
   * The next events, at most a piece of 64 KiB; none when there is no whole one before `endBytes`, the size of what may
   * be read. What does not check, and all behind it, is not there. Payloads are good as long as the caller keeps them.
   */
  async next(endBytes: number): Promise<LogEvent[]> {
    const buffer = this.#buffer(endBytes);
    if (buffer === null) return [];
    return this.#take(buffer.subarray(0, await this.#file.read(buffer, this.#start)));
  }

  /** The same at once, for what was written a moment ago. */
  nextNow(endBytes: number): LogEvent[] {
    const buffer = this.#buffer(endBytes);
    if (buffer === null) return [];
    return this.#take(buffer.subarray(0, this.#file.readNow(buffer, this.#start)));
  }

  get #start(): number {
    return this.#isChecked ? this.#place.offset : 0;
  }

  #buffer(endBytes: number): Buffer | null {
    const bytes = Math.min(PIECE_BYTES, endBytes - this.#start);
    return this.#isDamaged || bytes < HEADER_BYTES ? null : Buffer.allocUnsafeSlow(bytes);
  }

  #take(piece: Buffer): LogEvent[] {
    let at = this.#checkMagic(piece);
    const events: LogEvent[] = [];
    while (!this.#isDamaged) {
      const found = readRecord(piece, at, this.#place.id);
      if (found === "partial") break;
      if (found === "damaged") {
        this.#isDamaged = true;
        break;
      }
      const bytes = HEADER_BYTES + found.payload.byteLength;
      at += bytes;
      this.#place = { id: this.#place.id + 1, offset: this.#place.offset + bytes };
      events.push(found);
    }
    return events;
  }

  /** Where the records of the piece begin. */
  #checkMagic(piece: Buffer): number {
    if (this.#isChecked) return 0;
    this.#isChecked = true;
    this.#isDamaged = !piece.subarray(0, FILE_MAGIC.byteLength).equals(FILE_MAGIC);
    return FILE_MAGIC.byteLength;
  }
}
