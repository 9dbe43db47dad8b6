import type { Accounts } from "../../domain/account/accounts.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, LogId } from "../../domain/ids.ts";
import { YieldingTurns } from "../../system/yielding-turns.ts";
import type { DataLayout } from "../layout.ts";
import { EventFile, eventLogPath } from "./event-file.ts";
import { type Feed, LogReader, SharedPieces, wake } from "./log-reader.ts";
import { FIRST_POSITION } from "./reader.ts";
import { type OutputVisitor, type ScannedEvent, scanEvents } from "./scan.ts";
import { EventWriter, type EventWriterOptions } from "./writer.ts";

/** Largest number of concurrent readers of one log. */
export const READERS_COUNT_MAX = 200;

/** The part of an operation's log that its work uses. */
export type EventLog = Pick<
  EventWriter,
  "append" | "outputs" | "written" | "end" | "failed" | "nextId" | "path" | "isFull"
>;

export interface ScanRequest {
  /** only events from this id on are read */
  readonly first: number;
  /** whether the operation is in a terminal state */
  readonly hasEnded: boolean;
  readonly onOutput: OutputVisitor;
}

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

/**
 * The event logs of operations. Each has one writer and any number of readers. A reader reads the file at its own speed:
 * it does not slow the writer down, and no part of the log is kept in memory for it.
 */
export class EventLogs implements Disposable {
  readonly #layout: DataLayout;
  readonly #accounts: Accounts;
  readonly #now: () => bigint;
  readonly #feeds = new Map<LogId, Feed>();
  readonly #shared = new SharedPieces();
  /** Readers yield to the output of processes, which arrives while logs grow. */
  readonly #turns = new YieldingTurns();
  #isStopped = false;

  /** @param now ns since the epoch */
  constructor(layout: DataLayout, accounts: Accounts, now: () => bigint) {
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

  /** Creates the log of an operation that starts. The log must be ended before it is disposed of. */
  open(id: LogId): EventLog & Disposable {
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
  read(accountId: AccountId, id: LogId, since: number, hasEnded: boolean): LogReader {
    if ((this.#feeds.get(id)?.readersCount ?? 0) >= READERS_COUNT_MAX) {
      const details = { limit: READERS_COUNT_MAX };
      throw new ApiError("too_many_requests", "too many clients follow events already", details);
    }
    const place = this.#accounts.take(accountId, "eventReaders");
    const feed = this.#use(id);
    if (hasEnded) this.#openEnded(feed);
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
    if (hasEnded) this.#openEnded(feed);
    const { writer } = feed;
    const file = writer === null ? feed.file : writer.file;
    if (file === null) return;
    const from = writer?.index.before(first) ?? FIRST_POSITION;
    yield* scanEvents(file, from, writer?.writtenBytes ?? file.sizeBytes, onOutput);
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

  #openEnded(feed: Feed): void {
    feed.isOver = true;
    if (feed.writer === null) feed.file ??= EventFile.open(eventLogPath(this.#layout, feed.id));
  }

  #use(id: LogId): Feed {
    const existing = this.#feeds.get(id);
    const feed = existing ?? {
      id,
      writer: null,
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
