import { ApiError } from "../../domain/errors.ts";
import type { AccountId, OperationId } from "../../domain/ids.ts";
import type { LogEvent } from "../../domain/log-event.ts";
import { EventFile, eventLogPath } from "../../storage/events/event-file.ts";
import { EventReader, FIRST_PLACE, type Place } from "../../storage/events/reader.ts";
import { EventWriter, type EventWriterOptions } from "../../storage/events/writer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { ownTurn } from "../../system/turns.ts";
import { untilAborted } from "../../system/waiting.ts";
import type { OperationEvents } from "./events.ts";

/** Who reads the log of one operation at a time, and all logs of one account. */
export const READERS_COUNT_MAX = 200;
export const ACCOUNT_READERS_COUNT_MAX = 1000;

/** A live reader that is further behind than so many `bytes` reads what may have left the memory. */
const NEAR_BYTES_MAX = 1_048_576;
/** Pieces of all logs that are kept for other readers at the same place; a piece takes 64 KiB. */
const SHARED_PIECES_COUNT_MAX = 32;

/** What an operation writes to while it runs. */
export type EventLog = Pick<EventWriter, "append" | "outputs" | "written" | "end" | "failed" | "path">;

/** The log of an operation that runs; it is to be ended before disposal. */
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

/** Events that were read together, and the place of what follows. */
interface Piece {
  readonly events: readonly LogEvent[];
  readonly next: Place;
}

/** The log of an operation while somebody uses it. */
interface Feed {
  readonly id: OperationId;
  writer: EventWriter | null;
  /** of a log that nobody writes to; null before it is looked for, and where there is none */
  file: EventFile | null;
  /** nothing will be written any more */
  isOver: boolean;
  usersCount: number;
  readersCount: number;
  /** resolves when there may be more to read, or none will come */
  changed: PromiseWithResolvers<void>;
}

/**
 * The event logs of operations, for the one that writes each of them and for any number of readers. A reader reads the
 * file, at its own speed: it holds nothing back, and nothing of the log stays in memory for it.
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

  /** Lets readers know of the ends of operations, until disposal. */
  listen(events: OperationEvents): Disposable {
    return events.subscribe(({ type, operation }) => {
      const feed = this.#feeds.get(operation.id);
      if (feed === undefined || type === "started") return;
      feed.isOver = true;
      wake(feed);
    });
  }

  /** Feeds that somebody uses, and those who read. */
  get counts(): { readonly feeds: number; readonly readers: number } {
    const readers = [...this.#feeds.values()].reduce((sum, { readersCount }) => sum + readersCount, 0);
    return { feeds: this.#feeds.size, readers };
  }

  /** Opens the log of an operation that begins, which has none yet. It is to be ended before disposal. */
  open(id: OperationId): EventLog & Disposable {
    const feed = this.#use(id);
    const options = { path: eventLogPath(this.#layout, id), now: this.#now, onChange: () => wake(feed) };
    const log = new OpenLog(options, () => this.#leave(id, feed));
    feed.writer = log;
    return log;
  }

  /**
   * Reads the log of an operation, until disposal. The caller checks that it belongs to the account.
   * @param since only events with greater ids; -1: all
   * @param hasEnded whether the operation is in a terminal state
   * @throws ApiError `too_many_requests` when too many do
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

  /** Ends all readers where they are, now and from now on: they may go on when the service is there again. */
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

/** Followers of one log are at the same place most of the time: one of them reads, and the others get what it read. */
class SharedPieces {
  readonly #pieces = new Map<string, Piece>();

  get({ id }: Feed, { offset }: Place): Piece | null {
    return this.#pieces.get(`${id} ${offset}`) ?? null;
  }

  add({ id }: Feed, { offset }: Place, piece: Piece): void {
    this.#pieces.set(`${id} ${offset}`, piece);
    const [oldest] = this.#pieces.keys();
    if (oldest !== undefined && this.#pieces.size > SHARED_PIECES_COUNT_MAX) this.#pieces.delete(oldest);
  }
}

/** Reads one log for one reader, who takes one piece after the other. */
export class LogReader implements Disposable {
  readonly #feed: Feed;
  readonly #shared: SharedPieces;
  readonly #onLeave: () => void;
  readonly #since: number;
  #place: Place | null = null;
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

  /** No event will come any more that cannot be read now. */
  get isOver(): boolean {
    return this.#feed.isOver;
  }

  /** Id of the next event, whether it is there already or not, as far as the log was read. */
  get nextId(): number {
    return this.#place?.id ?? 0;
  }

  /** Resolves when there is more than `next` has seen, or it is over. @throws the reason of `signal` */
  async changed(signal: AbortSignal): Promise<void> {
    if (!this.isOver) await untilAborted(this.#seen, signal);
  }

  /** The next events that can be read now, some at a time; none when there are no more. */
  async next(): Promise<readonly LogEvent[]> {
    this.#isReading = true;
    using _read = { [Symbol.dispose]: () => this.#endRead() };
    for (;;) {
      // Many readers may wait for the same write; they have nothing to do with whoever else waits for a turn.
      await ownTurn(this.#feed);
      this.#seen = this.#feed.changed.promise;
      const events = this.#hasLeft ? [] : await this.#piece();
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
    // A read that is under way still needs the file.
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
    this.#place ??= writer?.index.before(this.#since + 1) ?? FIRST_PLACE;
    const piece = this.#shared.get(this.#feed, this.#place) ?? (await this.#read(file, this.#place));
    this.#place = piece.next;
    return piece.events;
  }

  async #read(file: EventFile, place: Place): Promise<Piece> {
    const reader = new EventReader(file, place);
    const endBytes = this.#feed.writer?.writtenBytes ?? file.sizeBytes;
    const isNear = this.#feed.writer !== null && endBytes - place.offset <= NEAR_BYTES_MAX;
    const events = isNear ? reader.nextNow(endBytes) : await reader.next(endBytes);
    const piece = { events, next: reader.place };
    if (events.length > 0 && this.#feed.readersCount > 1) this.#shared.add(this.#feed, place, piece);
    return piece;
  }
}
