import { ApiError } from "../../domain/errors.ts";
import type { AccountId, OperationId } from "../../domain/ids.ts";
import type { LogEvent } from "../../domain/log-event.ts";
import { EventFile, eventLogPath } from "../../storage/events/event-file.ts";
import { type EventPosition, EventReader, FIRST_POSITION } from "../../storage/events/reader.ts";
import { type ScannedEvent, scanEvents } from "../../storage/events/scan.ts";
import { EventWriter, type EventWriterOptions } from "../../storage/events/writer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { YieldingTurns } from "../../system/yielding-turns.ts";
import type { OperationEvents } from "./events.ts";

/** Largest number of concurrent readers of one log, and of all logs of one account. */
export const READERS_COUNT_MAX = 200;
export const ACCOUNT_READERS_COUNT_MAX = 1000;

/** A reader that is at most so many `bytes` behind the writer finds them in the page cache, and reads without a thread. */
const NEAR_BYTES_MAX = 1_048_576;
/** A piece of more `bytes` is long enough for further readers, even if there is more to read. */
const SHORT_BYTES_MAX = 32_768;
/** Number of pieces, of all logs together, that are kept for further readers. A piece has at most 96 KiB. */
const SHARED_PIECES_COUNT_MAX = 32;

/** The part of an operation's log that its work uses. */
export type EventLog = Pick<
  EventWriter,
  "append" | "outputs" | "written" | "end" | "failed" | "nextId" | "path" | "isFull"
>;

/** The log of a running operation. It must be ended before it is disposed of. */
class OpenLog extends EventWriter implements Disposable {
  readonly #onLeave: () => void;

  constructor(options: EventWriterOptions, onLeave: () => void) {
    super(options);
    this.#onLeave = onLeave;
  }

  [Symbol.dispose](): void {
    this.#onLeave();
  }
}

/** Events that were read at once, and the position of the next one. */
interface Piece {
  readonly events: readonly LogEvent[];
  readonly next: EventPosition;
}

/** A piece, or the read of it in a thread. */
type Reading = Piece | Promise<Piece>;

/** A log that has a writer or readers. */
interface Feed {
  readonly id: OperationId;
  writer: EventWriter | null;
  /** the file of an operation that had ended before; null when there is a writer, or no file */
  file: EventFile | null;
  /** true when no event will follow */
  isOver: boolean;
  usersCount: number;
  readersCount: number;
  /** how often more could be read, or nothing more was to follow */
  changesCount: number;
  /** called, once, at the next change */
  readonly waiting: Set<() => void>;
}

/**
 * The event logs of operations. Each has one writer and any number of readers. A reader reads the file at its own speed:
 * it does not slow the writer down, and no part of the log is kept in memory for it.
 */
export class EventLogs implements Disposable {
  readonly #layout: DataLayout;
  readonly #now: () => bigint;
  readonly #feeds = new Map<OperationId, Feed>();
  readonly #accounts = new Map<AccountId, number>();
  readonly #shared = new SharedPieces();
  /** Readers yield to the output of processes, which arrives while logs grow. */
  readonly #turns = new YieldingTurns();
  #isStopped = false;

  /** @param now ns since the epoch */
  constructor(layout: DataLayout, now: () => bigint) {
    this.#layout = layout;
    this.#now = now;
  }

  /** Tells readers when their operation ends, until disposal. */
  listen(events: OperationEvents): Disposable {
    return events.subscribe(({ type, operation }) => {
      const feed = this.#feeds.get(operation.id);
      if (feed === undefined || type === "started") return;
      feed.isOver = true;
      wake(feed);
    });
  }

  /** Number of logs in use, and of their readers. */
  get counts(): { readonly feeds: number; readonly readers: number } {
    const readers = [...this.#feeds.values()].reduce((sum, { readersCount }) => sum + readersCount, 0);
    return { feeds: this.#feeds.size, readers };
  }

  /** Creates the log of an operation that starts. The log must be ended before it is disposed of. */
  open(id: OperationId): EventLog & Disposable {
    const feed = this.#use(id);
    const options = { path: eventLogPath(this.#layout, id), now: this.#now, onChange: () => this.#onChange(feed) };
    const log = new OpenLog(options, () => this.#leave(id, feed));
    feed.writer = log;
    return log;
  }

  /**
   * Opens a log for one reader, until disposal. The operation must belong to the account.
   * @param since only events with greater ids are read; -1: all
   * @param hasEnded whether the operation is in a terminal state
   * @throws ApiError `too_many_requests` when the log or the account has too many readers
   */
  read(accountId: AccountId, id: OperationId, since: number, hasEnded: boolean): LogReader {
    const accountCount = this.#accounts.get(accountId) ?? 0;
    const count = this.#feeds.get(id)?.readersCount ?? 0;
    if (count >= READERS_COUNT_MAX || accountCount >= ACCOUNT_READERS_COUNT_MAX) {
      const details = { limit: count >= READERS_COUNT_MAX ? READERS_COUNT_MAX : ACCOUNT_READERS_COUNT_MAX };
      throw new ApiError("too_many_requests", "too many clients follow events already", details);
    }
    const feed = this.#use(id);
    if (hasEnded) this.#openEnded(feed);
    feed.readersCount += 1;
    this.#accounts.set(accountId, accountCount + 1);
    return new LogReader(feed, { shared: this.#shared, turns: this.#turns }, since, () => {
      feed.readersCount -= 1;
      const left = (this.#accounts.get(accountId) ?? 1) - 1;
      if (left === 0) this.#accounts.delete(accountId);
      else this.#accounts.set(accountId, left);
      this.#leave(id, feed);
    });
  }

  /**
   * The events of a log until now, outputs without their content; the caller must bound the number of such searches, each of
   * which has a buffer of 256 KiB. Payloads are valid until the next array is requested.
   * @param first id of an event before which none is wanted
   * @param hasEnded whether the operation is in a terminal state
   */
  async *scan(
    id: OperationId,
    { first, hasEnded }: { readonly first: number; readonly hasEnded: boolean },
  ): AsyncGenerator<readonly ScannedEvent[], void, undefined> {
    const feed = this.#use(id);
    using _use = { [Symbol.dispose]: () => this.#leave(id, feed) };
    if (hasEnded) this.#openEnded(feed);
    const { writer } = feed;
    const file = writer === null ? feed.file : writer.file;
    if (file === null) return;
    yield* scanEvents(file, writer?.index.before(first) ?? FIRST_POSITION, writer?.writtenBytes ?? file.sizeBytes);
  }

  /** Ends all readers, present and future, where they are. Their clients can go on from there after a restart. */
  [Symbol.dispose](): void {
    this.#isStopped = true;
    for (const feed of this.#feeds.values()) {
      feed.isOver = true;
      wake(feed);
    }
  }

  #onChange(feed: Feed): void {
    this.#turns.yield();
    wake(feed);
  }

  #openEnded(feed: Feed): void {
    feed.isOver = true;
    if (feed.writer === null) feed.file ??= EventFile.open(eventLogPath(this.#layout, feed.id));
  }

  #use(id: OperationId): Feed {
    const known = this.#feeds.get(id);
    const feed = known ?? {
      ...{ id, writer: null, file: null, isOver: this.#isStopped, usersCount: 0, readersCount: 0 },
      changesCount: 0,
      waiting: new Set<() => void>(),
    };
    feed.usersCount += 1;
    this.#feeds.set(id, feed);
    return feed;
  }

  #leave(id: OperationId, feed: Feed): void {
    feed.usersCount -= 1;
    if (feed.usersCount > 0) return;
    this.#feeds.delete(id);
    feed.file?.[Symbol.dispose]();
    feed.writer?.file?.[Symbol.dispose]();
  }
}

function wake(feed: Feed): void {
  feed.changesCount += 1;
  for (const waiter of feed.waiting) waiter();
  feed.waiting.clear();
}

/** Followers of one log are usually at the same position: one of them reads a piece, and the others get the same one. */
class SharedPieces {
  readonly #pieces = new Map<string, Reading>();

  /** The piece at a position; null when it is not known. */
  get({ id }: Feed, { offset }: EventPosition): Reading | null {
    const key = `${id} ${offset}`;
    const known = this.#pieces.get(key);
    if (known === undefined) return null;
    // The pieces that readers want are kept, not those that were read last.
    this.#pieces.delete(key);
    this.#pieces.set(key, known);
    return known;
  }

  /** Shares a piece, unless it is empty: more can be there later. */
  add(feed: Feed, position: EventPosition, reading: Reading): void {
    if (!(reading instanceof Promise) && reading.events.length === 0) return;
    this.#pieces.set(`${feed.id} ${position.offset}`, reading);
    const [oldest] = this.#pieces.keys();
    if (oldest !== undefined && this.#pieces.size > SHARED_PIECES_COUNT_MAX) this.#pieces.delete(oldest);
    if (!(reading instanceof Promise)) return;
    const settle = (piece: Piece | null) => {
      const isLatest = this.#pieces.get(`${feed.id} ${position.offset}`) === reading;
      this.forget(feed, position, reading);
      if (isLatest && piece !== null) this.add(feed, position, piece);
    };
    reading.then(settle, () => settle(null));
  }

  /** Shares that piece no longer. */
  forget({ id }: Feed, { offset }: EventPosition, reading: Reading): void {
    const key = `${id} ${offset}`;
    if (this.#pieces.get(key) === reading) this.#pieces.delete(key);
  }
}

/** What all readers share. */
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
  #seenCount: number;
  #signal: AbortSignal | null = null;
  #wake: () => void = () => undefined;
  #isReading = false;
  readonly #reading: Disposable = { [Symbol.dispose]: () => this.#endRead() };
  #hasLeft = false;

  constructor(feed: Feed, { shared, turns }: ReaderParts, since: number, onLeave: () => void) {
    this.#feed = feed;
    this.#shared = shared;
    this.#turns = turns;
    this.#since = since;
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

  /** Resolves when there is more to read than `next` has found, or no event will follow. @throws the reason of `signal` */
  async changed(signal: AbortSignal): Promise<void> {
    if (this.isOver || this.#seenCount !== this.#feed.changesCount) return;
    signal.throwIfAborted();
    // One listener for all waits: a follower waits for each line.
    if (this.#signal !== signal) signal.addEventListener("abort", () => this.#wake(), { once: true });
    this.#signal = signal;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wake = resolve;
    this.#feed.waiting.add(resolve);
    await promise;
    this.#feed.waiting.delete(resolve);
    signal.throwIfAborted();
  }

  /** The next events, at most 96 KiB; empty when no more can be read now, and after disposal. */
  async next(): Promise<readonly LogEvent[]> {
    // Its use of the log is over, and must be given back only once.
    if (this.#hasLeft) return [];
    this.#isReading = true;
    using _read = this.#reading;
    for (;;) {
      const turn = this.#turns.take(this.#feed);
      if (turn !== undefined) await turn;
      this.#seenCount = this.#feed.changesCount;
      const found = this.#hasLeft ? [] : this.#piece();
      const events = found instanceof Promise ? await found : found;
      if (this.#hasLeft) return [];
      const [first] = events;
      if (first === undefined || first.id > this.#since) return events;
      const wanted = events.filter(({ id }) => id > this.#since);
      if (wanted.length > 0) return wanted;
    }
  }

  /** Idempotent. */
  [Symbol.dispose](): void {
    if (this.#hasLeft) return;
    this.#hasLeft = true;
    // A pending read still needs the file.
    if (!this.#isReading) this.#onLeave();
    this.#wake();
  }

  #endRead(): void {
    this.#isReading = false;
    if (this.#hasLeft) this.#onLeave();
  }

  /** Not a promise when the piece needs no thread: followers take many, most of which another one has read. */
  #piece(): readonly LogEvent[] | Promise<readonly LogEvent[]> {
    const { writer } = this.#feed;
    const file = writer === null ? this.#feed.file : writer.file;
    if (file === null) return [];
    this.#position ??= writer?.index.before(this.#since + 1) ?? FIRST_POSITION;
    const known = this.#shared.get(this.#feed, this.#position);
    const reading = known ?? this.#share(file, this.#position);
    if (reading instanceof Promise) return this.#later(reading);
    if (known === null || !this.#hasMore(reading)) return this.#take(reading);
    this.#shared.forget(this.#feed, this.#position, reading);
    return this.#piece();
  }

  async #later(reading: Promise<Piece>): Promise<readonly LogEvent[]> {
    return this.#take(await reading);
  }

  #take({ events, next }: Piece): readonly LogEvent[] {
    this.#position = next;
    return events;
  }

  /** True when a short piece was read before the log grew: many short ones would take longer than a longer one. */
  #hasMore({ next }: Piece): boolean {
    const { writer } = this.#feed;
    const bytes = next.offset - (this.#position?.offset ?? 0);
    return writer !== null && next.offset < writer.writtenBytes && bytes < SHORT_BYTES_MAX;
  }

  #share(file: EventFile, position: EventPosition): Reading {
    const reading = this.#read(file, position);
    if (this.#feed.readersCount > 1) this.#shared.add(this.#feed, position, reading);
    return reading;
  }

  #read(file: EventFile, position: EventPosition): Reading {
    const reader = new EventReader(file, position);
    const endBytes = this.#feed.writer?.writtenBytes ?? file.sizeBytes;
    const isNear = this.#feed.writer !== null && endBytes - position.offset <= NEAR_BYTES_MAX;
    if (isNear) return { events: reader.nextNow(endBytes), next: reader.position };
    return reader.next(endBytes).then((events) => ({ events, next: reader.position }));
  }
}
