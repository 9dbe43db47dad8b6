import type { LogId } from "../../domain/ids.ts";
import type { LogEvent, LogEventData } from "../../domain/log-event.ts";
import type { YieldingTurns } from "../../system/yielding-turns.ts";
import type { EventFile } from "./event-file.ts";
import { type EventPosition, PositionIndex } from "./position.ts";
import { EventReader } from "./reader.ts";
import type { EventWriter } from "./writer.ts";

/** A reader that is at most so many `bytes` behind the writer finds them in the page cache, and reads without a thread. */
const NEAR_BYTES_MAX = 1_048_576;
/** A piece of more `bytes` is long enough for further readers, even if there is more to read. */
const SHORT_BYTES_MAX = 32_768;
/**
 * Number of pieces that are cached for further readers, of all logs together and of one log. A piece has at most 96 KiB, and its
 * frames have as much. Followers of one log are close together, and a piece that is cached for long costs several times its size: the
 * collector lets garbage grow in proportion to what is in use.
 */
const SHARED_PIECES_COUNT_MAX = 32;
const LOG_PIECES_COUNT_MAX = 8;

/** Events that were read at once, and the position of the next one. */
interface Piece {
  readonly events: readonly LogEvent[];
  readonly next: EventPosition;
}

/** A piece, or the read of it in a thread. */
type Reading = Piece | Promise<Piece>;

/** A log that has a writer or readers. */
export interface Feed {
  readonly id: LogId;
  writer: EventWriter | null;
  /** a ring that is being opened for writing */
  opening: Promise<EventWriter> | null;
  /** settles when the plain log of a former process is open for writing, or cannot be opened; null: it is not being opened */
  reopening: Promise<unknown> | null;
  /** the files of a ring, or of a plain log that had ended before */
  file: EventFile | null;
  /** true when no event will follow */
  isOver: boolean;
  usersCount: number;
  readersCount: number;
  /** number of changes: more could be read, or the log ended */
  changesCount: number;
  /** called, once, at the next change */
  readonly waiting: Set<() => void>;
}

/** Notifies the waiting readers of a change. */
export function wake(feed: Feed): void {
  feed.changesCount += 1;
  const waiting = [...feed.waiting];
  feed.waiting.clear();
  for (const waiter of waiting) waiter();
}

/** Followers of one log are usually at the same position: one of them reads a piece, and the others get the same one. */
export class SharedPieces {
  readonly #pieces = new Map<string, Reading>();

  /** The piece at a position; null when it is not cached. */
  get({ id }: Feed, { offset }: EventPosition): Reading | null {
    const key = `${id} ${offset}`;
    const cached = this.#pieces.get(key);
    if (cached === undefined) return null;
    // Pieces are dropped by their last use, not by their reading.
    this.#pieces.delete(key);
    this.#pieces.set(key, cached);
    return cached;
  }

  /** Shares a piece, unless it is empty: more can be there later. */
  add(feed: Feed, position: EventPosition, reading: Reading): void {
    if (!(reading instanceof Promise) && reading.events.length === 0) return;
    this.#pieces.set(`${feed.id} ${position.offset}`, reading);
    const keys = [...this.#pieces.keys()];
    const own = keys.filter((key) => key.startsWith(feed.id));
    const [oldestOwn] = own.length > LOG_PIECES_COUNT_MAX ? own : [];
    const [oldest] = keys.length > SHARED_PIECES_COUNT_MAX ? keys : [];
    const surplus = oldestOwn ?? oldest;
    if (surplus !== undefined) this.#pieces.delete(surplus);
    if (!(reading instanceof Promise)) return;
    const settle = (piece: Piece | null) => {
      const isLatest = this.#pieces.get(`${feed.id} ${position.offset}`) === reading;
      this.forget(feed, position, reading);
      if (isLatest && piece !== null) this.add(feed, position, piece);
    };
    reading.then(settle, () => settle(null));
  }

  /** Stops sharing the piece. */
  forget({ id }: Feed, { offset }: EventPosition, reading: Reading): void {
    const key = `${id} ${offset}`;
    if (this.#pieces.get(key) === reading) this.#pieces.delete(key);
  }
}

/** Events of a piece, or the read of them in a thread. */
type Reads = readonly LogEvent[] | Promise<readonly LogEvent[]>;

/** The shared state of all readers. */
interface ReaderParts {
  readonly shared: SharedPieces;
  readonly turns: YieldingTurns;
}

/** Reads one log for one client, piece by piece. */
export class LogReader implements Disposable {
  readonly #feed: Feed;
  readonly #shared: SharedPieces;
  readonly #turns: YieldingTurns;
  readonly #onLeave: () => void;
  readonly #since: number;
  #position: EventPosition | null = null;
  /** id of the next event, unless it is dropped before it is read */
  #nextId: number;
  #seenCount: number;
  #signal: AbortSignal | null = null;
  /** the wait for a change */
  #wait: PromiseWithResolvers<void> | null = null;
  /** made once, because hundreds of followers wait for each line */
  readonly #onTurn = () => this.#begin();
  readonly #onChange = () => this.#turns.call(this.#feed, this.#onTurn);
  /** true when the turn of the next read has come */
  #hasTurn = false;
  #isReading = false;
  readonly #reading: Disposable = { [Symbol.dispose]: () => this.#endRead() };
  #hasLeft = false;

  constructor(feed: Feed, { shared, turns }: ReaderParts, since: number, onLeave: () => void) {
    this.#feed = feed;
    this.#shared = shared;
    this.#turns = turns;
    this.#since = since;
    this.#nextId = since + 1;
    this.#onLeave = onLeave;
    this.#seenCount = feed.changesCount;
  }

  /** True when no event will follow those that can be read now, and after disposal. */
  get isOver(): boolean {
    return this.#hasLeft || this.#feed.isOver;
  }

  /** Id of the event after those that were read. */
  get nextId(): number {
    return this.#position?.id ?? 0;
  }

  /**
   * Resolves when `next` can read more, or no event will follow. Call `next` at once then.
   * Undefined: `next` can be called now.
   * @throws the reason of `signal`
   */
  changed(signal: AbortSignal): Promise<void> | undefined {
    if (this.isOver || this.#seenCount !== this.#feed.changesCount) return undefined;
    signal.throwIfAborted();
    // One listener for all waits.
    if (this.#signal !== signal) signal.addEventListener("abort", () => this.#fail(signal.reason), { once: true });
    this.#signal = signal;
    this.#wait = Promise.withResolvers<void>();
    this.#feed.waiting.add(this.#onChange);
    return this.#wait.promise;
  }

  /**
   * The next events, at most 96 KiB; empty when no more can be read now, and after disposal. It is a promise only when it
   * must wait: promises for each line and each of hundreds of followers would be most of the garbage of the process.
   */
  next(): readonly LogEvent[] | Promise<readonly LogEvent[]> {
    // Its use of the log is over, and must be released only once.
    if (this.#hasLeft) return [];
    if (this.#hasAll()) {
      this.#hasTurn = false;
      this.#seenCount = this.#feed.changesCount;
      return [];
    }
    const turn = this.#turn();
    if (turn !== undefined) return this.#nextAfter(turn);
    const reads = this.#read();
    const events = reads instanceof Promise ? null : this.#select(reads);
    return events ?? this.#nextAfter(reads);
  }

  async #nextAfter(pending: Promise<void> | Reads): Promise<readonly LogEvent[]> {
    this.#isReading = true;
    using _read = this.#reading;
    let events = await pending;
    while (!this.#hasLeft) {
      const selection = events === undefined ? null : this.#select(events);
      if (selection !== null) return selection;
      if (events !== undefined) await this.#turn();
      events = this.#hasLeft ? [] : await this.#read();
    }
    return [];
  }

  /** Idempotent. */
  [Symbol.dispose](): void {
    if (this.#hasLeft) return;
    this.#hasLeft = true;
    // A pending read still needs the file.
    if (!this.#isReading) this.#onLeave();
    this.#begin();
  }

  /** Ends the wait for a change. */
  #begin(): void {
    this.#hasTurn = true;
    this.#feed.waiting.delete(this.#onChange);
    this.#wait?.resolve();
    this.#wait = null;
  }

  #fail(reason: unknown): void {
    this.#feed.waiting.delete(this.#onChange);
    this.#wait?.reject(reason);
    this.#wait = null;
  }

  #turn(): Promise<void> | undefined {
    const turn = this.#hasTurn ? undefined : this.#turns.take(this.#feed);
    this.#hasTurn = false;
    return turn;
  }

  /** True when it has read all written events, so that a turn would be wasted. */
  #hasAll(): boolean {
    const { writer } = this.#feed;
    return writer !== null && this.#position?.offset === writer.writtenBytes;
  }

  #read(): Reads {
    this.#seenCount = this.#feed.changesCount;
    return this.#piece();
  }

  /** The events of a piece after `#since`, and before them the number of those that are dropped; null when there are none. */
  #select(events: readonly LogEvent[]): readonly LogEvent[] | null {
    const [first] = events;
    if (first === undefined) return events;
    const selection = first.id > this.#since ? events : events.filter(({ id }) => id > this.#since);
    const [next] = selection;
    if (next === undefined) return null;
    const droppedCount = next.id - this.#nextId;
    this.#nextId = (selection.at(-1) ?? next).id + 1;
    return droppedCount > 0 ? [droppedBefore(next, droppedCount), ...selection] : selection;
  }

  #endRead(): void {
    this.#isReading = false;
    if (this.#hasLeft) this.#onLeave();
  }

  /** Not a promise when the piece needs no thread: most pieces of a follower were already read by another one. */
  #piece(): Reads {
    const { writer } = this.#feed;
    const file = writer === null ? this.#feed.file : writer.file;
    if (file === null) return [];
    this.#position ??= (writer?.index ?? new PositionIndex(file.starts)).before(this.#since + 1);
    // A piece may be cached for longer than the ring has its events, which then count as dropped.
    const isDropped = this.#position.offset < file.first.offset;
    const cached = isDropped ? null : this.#shared.get(this.#feed, this.#position);
    const reading = cached ?? this.#share(file, this.#position);
    if (reading instanceof Promise) return this.#later(file, reading);
    if (cached === null || !this.#hasMore(reading)) return this.#take(file, reading);
    this.#shared.forget(this.#feed, this.#position, reading);
    return this.#piece();
  }

  async #later(file: EventFile, reading: Promise<Piece>): Promise<readonly LogEvent[]> {
    return this.#take(file, await reading);
  }

  /** Goes to the next piece; in a ring over what was dropped, or is damaged. */
  #take(file: EventFile, { events, next }: Piece): Reads {
    this.#position = next;
    const following = events.length > 0 ? null : file.after(next);
    if (following === null) return events;
    this.#position = following;
    return this.#piece();
  }

  /** True when a short piece was read before the log grew: many short ones would take longer than a longer one. */
  #hasMore({ next }: Piece): boolean {
    const { writer } = this.#feed;
    const bytes = next.offset - (this.#position?.offset ?? 0);
    return writer !== null && next.offset < writer.writtenBytes && bytes < SHORT_BYTES_MAX;
  }

  #share(file: EventFile, position: EventPosition): Reading {
    const reading = this.#pieceOf(file, position);
    if (this.#feed.readersCount > 1) this.#shared.add(this.#feed, position, reading);
    return reading;
  }

  #pieceOf(file: EventFile, position: EventPosition): Reading {
    const reader = new EventReader(file, position);
    const endBytes = this.#feed.writer?.writtenBytes ?? file.sizeBytes;
    const isNear = this.#feed.writer !== null && endBytes - position.offset <= NEAR_BYTES_MAX;
    if (isNear) return { events: reader.nextNow(endBytes), next: reader.position };
    return reader.next(endBytes).then((events) => ({ events, next: reader.position }));
  }
}

/** The event that stands for those which a reader has missed before `next`. */
function droppedBefore(next: LogEvent, count: number): LogEvent {
  const data: LogEventData["dropped"] = { first: next.id, dropped: count };
  const payload = Buffer.from(JSON.stringify(data), "utf8");
  return { id: next.id - 1, timeNs: next.timeNs, spid: null, type: "dropped", payload };
}
