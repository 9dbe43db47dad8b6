import { ApiError } from "../../domain/errors.ts";
import type { AccountId, OperationId } from "../../domain/ids.ts";
import type { LogEvent } from "../../domain/log-event.ts";
import { EventFile, eventLogPath } from "../../storage/events/event-file.ts";
import { type EventPosition, EventReader, FIRST_POSITION } from "../../storage/events/reader.ts";
import { EventWriter, type EventWriterOptions } from "../../storage/events/writer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { ownTurn } from "../../system/turns.ts";
import { untilAborted } from "../../system/waiting.ts";
import type { OperationEvents } from "./events.ts";

/** Largest number of concurrent readers of one log, and of all logs of one account. */
export const READERS_COUNT_MAX = 200;
export const ACCOUNT_READERS_COUNT_MAX = 1000;

/** A reader that is at most so many `bytes` behind the writer finds them in the page cache, and reads without a thread. */
const NEAR_BYTES_MAX = 1_048_576;
/** Number of pieces, of all logs together, that are kept for further readers. A piece has at most 64 KiB. */
const SHARED_PIECES_COUNT_MAX = 32;

/** The part of an operation's log that its work uses. */
export type EventLog = Pick<EventWriter, "append" | "outputs" | "written" | "end" | "failed" | "nextId" | "path">;

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
  /** resolves when more can be read, and when no event will follow */
  changed: PromiseWithResolvers<void>;
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
    const options = { path: eventLogPath(this.#layout, id), now: this.#now, onChange: () => wake(feed) };
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
    if (hasEnded) {
      feed.isOver = true;
      if (feed.writer === null) feed.file ??= EventFile.open(eventLogPath(this.#layout, id));
    }
    feed.readersCount += 1;
    this.#accounts.set(accountId, accountCount + 1);
    return new LogReader(feed, this.#shared, since, () => {
      feed.readersCount -= 1;
      const left = (this.#accounts.get(accountId) ?? 1) - 1;
      if (left === 0) this.#accounts.delete(accountId);
      else this.#accounts.set(accountId, left);
      this.#leave(id, feed);
    });
  }

  /** Ends all readers, present and future, where they are. Their clients can go on from there after a restart. */
  [Symbol.dispose](): void {
    this.#isStopped = true;
    for (const feed of this.#feeds.values()) {
      feed.isOver = true;
      wake(feed);
    }
  }

  #use(id: OperationId): Feed {
    const known = this.#feeds.get(id);
    const feed = known ?? {
      ...{ id, writer: null, file: null, isOver: this.#isStopped, usersCount: 0, readersCount: 0 },
      changed: Promise.withResolvers<void>(),
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
  feed.changed.resolve();
  feed.changed = Promise.withResolvers();
}

/** Followers of one log are usually at the same position: one of them reads a piece, and the others get the same one. */
class SharedPieces {
  readonly #pieces = new Map<string, Promise<Piece>>();

  /** The piece at a position, or the read of it that is pending; null when it is not known. */
  get({ id }: Feed, { offset }: EventPosition): Promise<Piece> | null {
    return this.#pieces.get(`${id} ${offset}`) ?? null;
  }

  /** Shares a piece that is being read, unless it turns out to be empty: more can be there later. */
  add({ id }: Feed, { offset }: EventPosition, reading: Promise<Piece>): void {
    const key = `${id} ${offset}`;
    this.#pieces.set(key, reading);
    const [oldest] = this.#pieces.keys();
    if (oldest !== undefined && this.#pieces.size > SHARED_PIECES_COUNT_MAX) this.#pieces.delete(oldest);
    const forget = () => {
      if (this.#pieces.get(key) === reading) this.#pieces.delete(key);
    };
    reading.then(({ events }) => (events.length === 0 ? forget() : undefined), forget);
  }
}

/** Reads one log for one client, piece by piece. */
export class LogReader implements Disposable {
  readonly #feed: Feed;
  readonly #shared: SharedPieces;
  readonly #onLeave: () => void;
  readonly #since: number;
  #position: EventPosition | null = null;
  #seen: Promise<void>;
  #isReading = false;
  #hasLeft = false;

  constructor(feed: Feed, shared: SharedPieces, since: number, onLeave: () => void) {
    this.#feed = feed;
    this.#shared = shared;
    this.#since = since;
    this.#onLeave = onLeave;
    this.#seen = feed.changed.promise;
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
    if (!this.isOver) await untilAborted(this.#seen, signal);
  }

  /** The next events, at most 64 KiB; empty when no more can be read now, and after disposal. */
  async next(): Promise<readonly LogEvent[]> {
    // Its use of the log is over, and must be given back only once.
    if (this.#hasLeft) return [];
    this.#isReading = true;
    using _read = { [Symbol.dispose]: () => this.#endRead() };
    for (;;) {
      this.#seen = this.#feed.changed.promise;
      const events = this.#hasLeft ? [] : await this.#piece();
      // All followers of a log wake at once. They take turns with each other, and with other work.
      await ownTurn(this.#feed);
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
  }

  #endRead(): void {
    this.#isReading = false;
    if (this.#hasLeft) this.#onLeave();
  }

  async #piece(): Promise<readonly LogEvent[]> {
    const { writer } = this.#feed;
    const file = writer === null ? this.#feed.file : writer.file;
    if (file === null) return [];
    this.#position ??= writer?.index.before(this.#since + 1) ?? FIRST_POSITION;
    const piece = await (this.#shared.get(this.#feed, this.#position) ?? this.#share(file, this.#position));
    this.#position = piece.next;
    return piece.events;
  }

  #share(file: EventFile, position: EventPosition): Promise<Piece> {
    const reading = this.#read(file, position);
    if (this.#feed.readersCount > 1) this.#shared.add(this.#feed, position, reading);
    return reading;
  }

  async #read(file: EventFile, position: EventPosition): Promise<Piece> {
    const reader = new EventReader(file, position);
    const endBytes = this.#feed.writer?.writtenBytes ?? file.sizeBytes;
    const isNear = this.#feed.writer !== null && endBytes - position.offset <= NEAR_BYTES_MAX;
    const events = isNear ? reader.nextNow(endBytes) : await reader.next(endBytes);
    return { events, next: reader.position };
  }
}
