import { Accounts } from "../../domain/account/accounts.ts";
import type { AccountId } from "../../domain/ids.ts";
import { RoundRobin } from "../../system/round-robin.ts";
import { ClosedError, type Rows, type ScanQuery, ScanThread } from "./scan-thread.ts";

/** Offset from which a query runs in the thread. Skipping fewer rows takes less than a millisecond. */
export const LARGE_OFFSET_MIN = 5000;

/** The part of a list that is read, newest first. */
export interface ListWindow extends Pick<Asker, "signal"> {
  readonly limit: number;
  readonly offset: number;
  /** bounds of the creation time in `milliseconds`, both inclusive */
  readonly sinceMs?: number | undefined;
  readonly untilMs?: number | undefined;
}

/** The caller of a long query. */
export interface Asker {
  readonly accountId: AccountId;
  /** ends the wait for the query's turn */
  readonly signal?: AbortSignal | undefined;
}

/** A query that waits for its turn. */
interface Waiting {
  readonly begin: () => void;
  readonly refuse: (reason: unknown) => void;
}

/** A statement of drizzle's. */
interface Compiled {
  toSQL(): ScanQuery;
}

/**
 * Runs long queries in threads, so that they do not block the event loop. Accounts take turns in one thread, a query at a
 * time; the service's own work has another one.
 */
export class Scans implements Disposable {
  readonly #accounts: Accounts;
  readonly #callers: ScanThread;
  readonly #upkeep: ScanThread;
  readonly #waiting = new RoundRobin<Waiting>();
  /** a query has its turn */
  #isTaken = false;

  constructor(path: string, accounts = new Accounts()) {
    this.#accounts = accounts;
    this.#callers = new ScanThread(path);
    this.#upkeep = new ScanThread(path);
  }

  /**
   * Executes a reading statement for a caller. It sees everything that was committed before the call.
   * @throws ApiError `too_many_requests` when too many wait; the reason of the signal; Error when the statement fails, or the
   *   database is closed
   */
  async all(query: ScanQuery, { accountId, signal }: Asker): Promise<Rows> {
    signal?.throwIfAborted();
    using _turn = this.#isTaken ? await this.#wait(accountId, signal) : this.#take();
    return await this.#callers.all(query);
  }

  /** The first column of a query's rows, as ids. @throws as `all` does */
  async ids<Id extends string>(query: Compiled, asker: Asker): Promise<Id[]> {
    return firsts(await this.all(query.toSQL(), asker));
  }

  /** Executes a statement of the service's own. @throws Error when it fails, or the database is closed */
  async upkeep(query: ScanQuery): Promise<Rows> {
    return await this.#upkeep.all(query);
  }

  /** The first column of the rows of the service's own query, as ids. @throws as `upkeep` does */
  async upkeepIds<Id extends string>(query: Compiled): Promise<Id[]> {
    return firsts(await this.upkeep(query.toSQL()));
  }

  /** Executes a statement of the service's own while no other query runs in a thread. @throws as `upkeep` does */
  async alone(query: ScanQuery): Promise<Rows> {
    using _turn = this.#isTaken ? await this.#wait(null) : this.#take();
    return await this.#upkeep.all(query);
  }

  /** Ends running queries and those that wait, with an error. */
  [Symbol.dispose](): void {
    for (let next = this.#waiting.take(); next !== null; next = this.#waiting.take()) next.refuse(new ClosedError());
    this.#callers[Symbol.dispose]();
    this.#upkeep[Symbol.dispose]();
  }

  #take(): Disposable {
    this.#isTaken = true;
    return { [Symbol.dispose]: () => this.#pass() };
  }

  #pass(): void {
    const next = this.#waiting.take();
    if (next === null) this.#isTaken = false;
    else next.begin();
  }

  async #wait(owner: AccountId | null, signal?: AbortSignal): Promise<Disposable> {
    using _place = this.#accounts.take(owner, "waitingQueries");
    const turn = Promise.withResolvers<void>();
    const waiting: Waiting = { begin: turn.resolve, refuse: turn.reject };
    const leave = () => {
      if (this.#waiting.delete(owner, waiting)) turn.reject(signal?.reason);
    };
    this.#waiting.add(owner, waiting);
    signal?.addEventListener("abort", leave, { once: true });
    using _listener = { [Symbol.dispose]: () => signal?.removeEventListener("abort", leave) };
    await turn.promise;
    return this.#take();
  }
}

function firsts<Id extends string>(rows: Rows): Id[] {
  return rows.map(([id]) => id as Id);
}
