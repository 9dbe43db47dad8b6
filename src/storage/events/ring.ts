import type { EventFile } from "./event-file.ts";
import type { EventPosition } from "./position.ts";
import { EventReader } from "./reader.ts";

/** Number of segments of a ring. */
const SEGMENTS_COUNT = 16;

/** A ring that is open for writing. */
export interface OpenRing {
  readonly file: EventFile;
  /** where its next event belongs */
  readonly end: EventPosition;
  /** largest size of all segments, in `bytes` */
  readonly limitBytes: number;
}

/** The position after the last whole event of a ring without a writer. */
export async function endOfRing(file: EventFile): Promise<EventPosition> {
  const reader = new EventReader(file, file.starts.at(-1));
  const { sizeBytes } = file;
  while ((await reader.next(sizeBytes)).length > 0);
  return reader.position;
}

/** Decides which records of a log begin a segment; none does in a plain log. */
export class SegmentCuts {
  readonly #ring: OpenRing | undefined;
  readonly #segmentBytes: number;
  /** id of the first event of the segment */
  #firstId = 0;
  /** the first record from this offset on begins a segment */
  #end = Number.POSITIVE_INFINITY;
  #cuts: EventPosition[] = [];

  constructor(ring?: OpenRing) {
    this.#ring = ring;
    this.#segmentBytes = Math.ceil((ring?.limitBytes ?? 0) / SEGMENTS_COUNT);
    if (ring === undefined) return;
    const { file, end } = ring;
    const last = file.starts.at(-1) ?? end;
    this.#firstId = last.id;
    this.#end = file.isEmpty ? end.offset : last.offset + this.#segmentBytes;
  }

  /** Adds the position of a new record. */
  add(position: EventPosition): void {
    if (position.offset < this.#end) return;
    this.#cuts.push(position);
    this.#firstId = position.id;
    this.#end = position.offset + this.#segmentBytes;
  }

  /** Number of records of the segment before the event `id`. */
  recordsCount(id: number): number {
    return id - this.#firstId;
  }

  /** Takes the beginnings of segments among the records that are not written yet. */
  take(): readonly EventPosition[] {
    return this.#cuts.splice(0);
  }

  /** Begins a segment, and drops the first ones. */
  async cut(file: EventFile, start: EventPosition): Promise<void> {
    await file.begin(start, (this.#ring?.limitBytes ?? 0) - this.#segmentBytes);
  }
}
