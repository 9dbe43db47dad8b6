import type { EventFile } from "./event-file.ts";
import { LogSummary, type RunningRecord } from "./log-summary.ts";
import type { EventPosition } from "./position.ts";
import { EventReader } from "./reader.ts";

/** Number of segments of a ring. */
const SEGMENTS_COUNT = 16;

/** A ring that is open for writing. */
export interface OpenRing {
  readonly file: EventFile;
  /** where its next event belongs */
  readonly end: EventPosition;
  /** of all events before the end; the writer continues it */
  readonly summary: LogSummary;
  /** largest size of all segments, in `bytes` */
  readonly limitBytes: number;
}

/** The note of a ring, as JSON: its first events are gone, so it has the processes that ran before one of its segments. */
interface Note {
  /** of the segment's first event */
  readonly position: EventPosition;
  readonly running: RunningRecord;
}

/** The position after the last whole event of a ring without a writer, and what its events say about processes. */
export async function endOfRing(file: EventFile): Promise<Pick<OpenRing, "end" | "summary">> {
  const { starts, sizeBytes } = file;
  const note = await noteOf(file);
  const from = starts.find((start) => Bun.deepEquals(start, note?.position));
  // Without a note that applies, a process that began before the last segment is not part of the summary.
  const reader = new EventReader(file, from ?? starts.at(-1), true);
  const summary = new LogSummary(from === undefined ? [] : note?.running);
  for (;;) {
    const events = await reader.next(sizeBytes);
    for (const event of events) summary.take(event);
    if (events.length > 0) continue;
    const next = file.after(reader.position);
    if (next === null) return { end: reader.position, summary };
    reader.skipTo(next);
  }
}

/** The note; null when there is none, or when a power failure has damaged it. */
async function noteOf(file: EventFile): Promise<Note | null> {
  try {
    return JSON.parse((await file.note()) ?? "") as Note;
  } catch {
    // It is not whole.
    return null;
  }
}

/** A segment that begins with a record that is not written yet. */
interface Cut {
  readonly start: EventPosition;
  /** the note of the ring from then on */
  readonly note: string;
}

/** Decides which records of a log begin a segment; none does in a plain log. */
export class SegmentCuts {
  readonly #ring: OpenRing | undefined;
  readonly #segmentBytes: number;
  /** id of the first event of the segment */
  #firstId = 0;
  /** the first record from this offset on begins a segment */
  #end = Number.POSITIVE_INFINITY;
  #cuts: Cut[] = [];

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
    const note: Note = { position, running: this.#ring?.summary.record() ?? [] };
    this.#cuts.push({ start: position, note: JSON.stringify(note) });
    this.#firstId = position.id;
    this.#end = position.offset + this.#segmentBytes;
  }

  /** Number of records of the segment before the event `id`. */
  recordsCount(id: number): number {
    return id - this.#firstId;
  }

  /** Takes the beginnings of segments among the records that are not written yet. */
  take(): readonly Cut[] {
    return this.#cuts.splice(0);
  }

  /** Begins a segment, and drops the first ones. */
  async cut(file: EventFile, { start, note }: Cut): Promise<void> {
    await file.begin(start, (this.#ring?.limitBytes ?? 0) - this.#segmentBytes);
    // An earlier note applies until then: many segments are dropped after its own.
    await file.setNote(note);
  }
}
