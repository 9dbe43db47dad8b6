import type { Accounts } from "../../domain/account/accounts.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, LogId } from "../../domain/ids.ts";
import { YieldingTurns } from "../../system/yielding-turns.ts";
import type { DataLayout } from "../layout.ts";
import { EVENT_LOG_BYTES_MAX } from "../limits.ts";
import { EventFile, eventLogPath } from "./event-file.ts";
import { type Feed, LogReader, SharedPieces, wake } from "./log-reader.ts";
import type { LogSummary } from "./log-summary.ts";
import { PositionIndex } from "./position.ts";
import { reopenLog } from "./reopen.ts";
import { endOfRing } from "./ring.ts";
import { type OutputVisitor, type ScannedEvent, scanEvents } from "./scan.ts";
import { EventWriter, type EventWriterOptions } from "./writer.ts";

/** Largest number of concurrent readers of one log. */
export const READERS_COUNT_MAX = 200;

/** The part of a log that the work of an operation uses. */
export type EventLog = Pick<
  EventWriter,
  "append" | "outputs" | "cut" | "written" | "end" | "failed" | "nextId" | "latestNs" | "path" | "isFull"
>;

export interface ScanRequest {
  /** only events from this id on are read */
  readonly first: number;
  /** whether the operation is in a terminal state */
  readonly hasEnded: boolean;
  readonly onOutput: OutputVisitor;
}

/** The plain log of a running operation. It must be ended before it is disposed of. */
class PlainLog extends EventWriter implements Disposable {
  readonly #onLeave: () => void;

  constructor(options: EventWriterOptions, onLeave: () => void) {
    super(options);
    this.#onLeave = onLeave;
  }

  [Symbol.dispose](): void {
    this.#onLeave();
  }
}

/** One opening of a ring, which several can have open. Nothing is added through it after its end. */
export class RingLog implements EventLog, Disposable {
  readonly #writer: EventWriter;
  readonly #onLeave: () => void;
  #ending: Promise<void> | null = null;

  constructor(writer: EventWriter, onLeave: () => void) {
    this.#writer = writer;
    this.#onLeave = onLeave;
  }

  get path(): string {
    return this.#writer.path;
  }

  get nextId(): number {
    return this.#writer.nextId;
  }

  get latestNs(): bigint {
    return this.#writer.latestNs;
  }

  get isFull(): boolean {
    return this.#writer.isFull;
  }

  get failed(): AbortSignal {
    return this.#writer.failed;
  }

  /** The running processes of the ring until now. */
  get summary(): LogSummary {
    return this.#writer.summary;
  }

  append(...event: Parameters<EventLog["append"]>): number {
    return this.#ending === null ? this.#writer.append(...event) : this.#writer.nextId;
  }

  outputs(...[spid, limitBytes, isReserved, from]: Parameters<EventLog["outputs"]>): ReturnType<EventLog["outputs"]> {
    return this.#writer.outputs(spid, limitBytes, isReserved, from, () => this.#ending === null);
  }

  cut(): number {
    return this.#writer.cut();
  }

  written(): Promise<void> {
    return this.#writer.written();
  }

  end(): Promise<void> {
    this.#ending ??= this.#writer.flush();
    // The caller may await it later.
    this.#ending.catch(() => undefined);
    return this.#ending;
  }

  [Symbol.dispose](): void {
    this.#onLeave();
  }
}

/**
 * The event logs of operations and of sandboxes. Each has one writer and any number of readers. A reader reads the files at its
 * own speed: it does not slow the writer down, and no part of the log is kept in memory for it. A reader of a ring that falls
 * behind its first event gets the event `dropped`, and continues there.
 */
export class EventLogs implements Disposable {
  readonly #layout: DataLayout;
  readonly #accounts: Accounts;
  readonly #now: () => bigint;
  readonly #ringBytes: number;
  readonly #feeds = new Map<LogId, Feed>();
  readonly #shared = new SharedPieces();
  /** Readers yield to the output of processes, which arrives while logs grow. */
  readonly #turns = new YieldingTurns();
  #isStopped = false;

  /**
   * @param now ns since the epoch
   * @param ringBytes largest size of a ring, in `bytes`
   */
  constructor(layout: DataLayout, accounts: Accounts, now: () => bigint, ringBytes: number = EVENT_LOG_BYTES_MAX) {
    this.#ringBytes = ringBytes;
    this.#layout = layout;
    this.#accounts = accounts;
    this.#now = now;
  }

  /** Ends the readers of an operation's log at the end of the log, which no longer grows. */
  endReaders(id: LogId): void {
    const feed = this.#feeds.get(id);
    if (feed === undefined) return;
    feed.isOver = true;
    wake(feed);
  }

  /** Number of logs in use, and of their readers. */
  get counts(): { readonly feeds: number; readonly readers: number } {
    const readers = [...this.#feeds.values()].reduce((sum, { readersCount }) => sum + readersCount, 0);
    return { feeds: this.#feeds.size, readers };
  }

  /** Creates the plain log of an operation that starts. The log must be ended before it is disposed of. */
  open(id: LogId): EventLog & Disposable {
    const feed = this.#use(id);
    const log = new PlainLog(this.#writerOptions(feed), () => this.#leave(id, feed));
    feed.writer = log;
    return log;
  }

  /**
   * Continues the plain log of an operation that a former process left running, after its last whole event. Null when there
   * is none: it had no event yet. The log must be ended before it is disposed of.
   * @throws Error of the file system
   */
  async reopen(id: LogId): Promise<{ readonly log: EventLog & Disposable; readonly summary: LogSummary } | null> {
    const feed = this.#use(id);
    using undo = new DisposableStack();
    undo.defer(() => this.#leave(id, feed));
    const reopening = reopenLog(eventLogPath(this.#layout, id));
    feed.reopening = reopening.catch(() => undefined);
    const reopened = await reopening;
    if (reopened === null) return null;
    const log = new PlainLog({ ...this.#writerOptions(feed), log: reopened }, () => this.#leave(id, feed));
    feed.writer = log;
    undo.move();
    this.#onChange(feed);
    return { log, summary: reopened.summary };
  }

  /**
   * Opens a ring, or creates it: its ids continue after the last whole event. Several openings of one ring write to it in the
   * order of their calls. Each must be ended before it is disposed of; the end of one does not end the log.
   * @throws Error of the file system
   */
  async openRing(id: LogId): Promise<RingLog> {
    const feed = this.#use(id);
    try {
      feed.opening ??= this.#ringWriter(feed).finally(() => {
        feed.opening = null;
      });
      return new RingLog(await feed.opening, () => this.#leave(id, feed));
    } catch (error) {
      this.#leave(id, feed);
      throw error;
    }
  }

  /**
   * Opens a log for one reader, until disposal. The operation must belong to the account.
   * @param since only events with greater ids are read; -1: all
   * @param hasEnded whether the operation is in a terminal state
   * @throws ApiError `too_many_requests` when the log or the account has too many readers
   */
  read(accountId: AccountId, id: LogId, since: number, hasEnded: boolean): LogReader {
    if ((this.#feeds.get(id)?.readersCount ?? 0) >= READERS_COUNT_MAX) {
      const details = { limit: READERS_COUNT_MAX };
      throw new ApiError("too_many_requests", "too many clients follow events already", details);
    }
    const place = this.#accounts.take(accountId, "eventReaders");
    const feed = this.#use(id);
    this.#openFile(feed, hasEnded);
    feed.readersCount += 1;
    return new LogReader(feed, { shared: this.#shared, turns: this.#turns }, since, () => {
      feed.readersCount -= 1;
      place[Symbol.dispose]();
      this.#leave(id, feed);
    });
  }

  /**
   * The events of a log until now, without outputs, which `onOutput` gets. The caller must bound the number of such searches,
   * each of which has a buffer of 256 KiB. Payloads are valid until the next array is requested.
   */
  async *scan(
    id: LogId,
    { first, hasEnded, onOutput }: ScanRequest,
  ): AsyncGenerator<readonly ScannedEvent[], void, undefined> {
    const feed = this.#use(id);
    using _use = { [Symbol.dispose]: () => this.#leave(id, feed) };
    await feed.reopening;
    this.#openFile(feed, hasEnded);
    const { writer } = feed;
    const file = writer === null ? feed.file : writer.file;
    if (file === null) return;
    const from = (writer?.index ?? new PositionIndex(file.starts)).before(first);
    yield* scanEvents(file, from, writer?.writtenBytes ?? file.sizeBytes, onOutput);
  }

  /** Resolves when readers can read all events that were added to a log so far, or when writing has failed. */
  async written(id: LogId): Promise<void> {
    await this.#feeds.get(id)?.writer?.written();
  }

  /** Ends all readers, present and future, at their positions. Their clients can continue from there after a restart. */
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

  /** The present writer of a ring, or a new one when there is none, or when it has failed. */
  async #ringWriter(feed: Feed): Promise<EventWriter> {
    if (feed.writer !== null && !feed.writer.failed.aborted) return feed.writer;
    feed.file ??= EventFile.ring(eventLogPath(this.#layout, feed.id));
    const ended = await endOfRing(feed.file);
    await feed.file.resume(ended.end);
    const ring = { ...ended, file: feed.file, limitBytes: this.#ringBytes };
    feed.writer = new EventWriter({ ...this.#writerOptions(feed), ring });
    return feed.writer;
  }

  #writerOptions(feed: Feed): EventWriterOptions {
    return { path: eventLogPath(this.#layout, feed.id), now: this.#now, onChange: () => this.#onChange(feed) };
  }

  /** Opens the files for readers. The plain log of an operation that has not ended has a writer, or no file. */
  #openFile(feed: Feed, hasEnded: boolean): void {
    feed.isOver ||= hasEnded;
    if (feed.writer !== null || feed.file !== null) return;
    const path = eventLogPath(this.#layout, feed.id);
    feed.file = hasEnded ? EventFile.open(path) : EventFile.ring(path);
  }

  #use(id: LogId): Feed {
    const existing = this.#feeds.get(id);
    const feed = existing ?? {
      id,
      writer: null,
      opening: null,
      reopening: null,
      file: null,
      isOver: this.#isStopped,
      usersCount: 0,
      readersCount: 0,
      changesCount: 0,
      waiting: new Set<() => void>(),
    };
    feed.usersCount += 1;
    this.#feeds.set(id, feed);
    return feed;
  }

  #leave(id: LogId, feed: Feed): void {
    feed.usersCount -= 1;
    if (feed.usersCount > 0) return;
    this.#feeds.delete(id);
    feed.file?.[Symbol.dispose]();
    feed.writer?.file?.[Symbol.dispose]();
  }
}
