import type { Database } from "../../db/database.ts";
import {
  failOperation,
  insertOperation,
  recoverOperations,
  requestCancel,
  startOperation,
} from "../../db/operations.ts";
import { publishOperation } from "../../db/publish.ts";
import { queuedOperations } from "../../db/requests.ts";
import type { RequestedResources } from "../../db/schema.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import type { ErrorBody } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import type { NetworkAudit } from "../../domain/network.ts";
import type { EndStatus, OperationKind } from "../../domain/operation.ts";
import type { Readiness } from "../../domain/readiness.ts";
import type { Log } from "../../log.ts";
import type { EventLog, EventLogs } from "../../storage/events/event-logs.ts";
import { ownTurn } from "../../system/turns.ts";
import { sleepUnlessAborted } from "../../system/waiting.ts";
import { countChanges, endReaders, logChanges, OperationChanges, type OperationRef } from "./changes.ts";
import { EndWaiters } from "./end-waiters.ts";
import { CANCELLED, CREDENTIALS_GONE, failureOf, RESTARTED, STOPPED, STOPPING, TOO_LARGE } from "./failures.ts";
import type { Credentials, Kind, KindAtWork } from "./kind.ts";
import { Laps } from "./laps.ts";
import type { CancelOutcome, OperationsPort } from "./ports.ts";
import type { Requests } from "./requests.ts";
import type { Scheduler } from "./scheduler.ts";
import type { Prepared, WorkContext } from "./work.ts";

/** Delay before the next attempt to record the end of an operation when the database could not be written. */
const RECORD_RETRY_MS = 1000;

/** An operation that is queued or runs in this process. While it waits, its request is on disk only. */
interface LiveOperation extends OperationRef {
  readonly resources: RequestedResources | null;
  credentials: Credentials | null;
  /** its place among the waiting ones of the account; disposed when it starts, or ends without having started */
  readonly place: Disposable;
  /** what its worker reserved at its submission; disposed when it ends */
  readonly reserved: Disposable | null;
  readonly abort: AbortController;
  readonly laps: Laps;
  /** null before the start */
  log: (EventLog & Disposable) | null;
  /** gives the audit of the instance's network; null without a network */
  networkAudit: (() => NetworkAudit) | null;
  started: boolean;
  /** its row is terminal; resources of the work may still have to be disposed of */
  ended: boolean;
}

export interface OperationsOptions {
  readonly db: Database;
  readonly requests: Requests;
  readonly log: Log;
  readonly clock: () => number;
  readonly metrics: Parameters<typeof countChanges>[1];
  readonly scheduler: Scheduler;
  /** the table of kinds */
  readonly kinds: readonly KindAtWork[];
  readonly eventLogs: EventLogs;
  /** Samples a running operation until `signal` fires; null when there is nothing to sample. */
  readonly samplesOf: (id: OperationId, signal: AbortSignal) => AsyncIterable<InstanceStats> | null;
  /** @throws ApiError `insufficient_storage` when the disk has too little free space for more work */
  readonly requireSpace: () => void;
  /** Resolves when no run is being ended to free disk space. */
  readonly spaceSettled: (signal: AbortSignal) => Promise<void>;
  readonly readiness: () => Readiness;
  /** Resolves when work may begin: machines are known to run. @throws ApiError when they cannot */
  readonly machinesKnown: (signal: AbortSignal) => Promise<void>;
  readonly accounts: Accounts;
}

/**
 * Runs operations. Each one is a row before its work begins, changes state by compare-and-set, and ends exactly once. A
 * worker prepares a publication; only this class publishes it or ends the operation in another way, and emits one event.
 */
export class Operations implements OperationsPort, AsyncDisposable {
  readonly changes: OperationChanges;
  readonly #options: OperationsOptions;
  readonly #kinds: ReadonlyMap<OperationKind, KindAtWork>;
  readonly #live = new Map<OperationId, LiveOperation>();
  readonly #runs = new Set<Promise<void>>();
  readonly #waiters: EndWaiters;
  readonly #subscriptions = new DisposableStack();
  readonly #stopped = new AbortController();

  constructor(options: OperationsOptions) {
    this.#options = options;
    this.#kinds = new Map(options.kinds.map((kind) => [kind.name, kind]));
    this.changes = new OperationChanges(options.log);
    this.#waiters = this.#subscriptions.use(new EndWaiters(this.changes));
    this.#subscriptions.use(countChanges(this.changes, options.metrics));
    this.#subscriptions.use(logChanges(this.changes, options.log));
    this.#subscriptions.use(endReaders(this.changes, options.eventLogs));
    // Its request may have had secrets.
    this.#subscriptions.use(this.changes.subscribe(({ type }) => type === "ended" && options.db.eraseSoon()));
  }

  /** Ends the operations that a former process left EXECUTING, and queues those that it left PENDING. */
  recover(): void {
    const { db, clock, accounts } = this.#options;
    const ended = recoverOperations(db, {
      interrupted: RESTARTED.body(),
      credentialsLost: CREDENTIALS_GONE.body(),
      now: clock(),
    });
    for (const { status, error, ...operation } of ended) {
      this.changes.emit({ type: "ended", operation, status, error, phases: [] });
    }
    for (const { resources, sizeBytes, ...operation } of queuedOperations(db)) {
      const place = accounts.add(operation.accountId, { waitingOperations: 1, waitingRequests: sizeBytes });
      this.#enqueue(operation, { resources, credentials: null, place, reserved: null });
    }
  }

  async submit<Submission>(
    accountId: AccountId,
    kind: Pick<Kind<Submission, unknown, unknown, never>, "name" | "store">,
    submission: NoInfer<Submission>,
  ): Promise<{ readonly id: OperationId }> {
    const { db, clock, requests, requireSpace, accounts } = this.#options;
    using stack = new DisposableStack();
    const reserved = stack.use(this.#kindOf(kind.name).reserve?.(submission) ?? null);
    if (this.#stopped.signal.aborted) throw STOPPING;
    requireSpace();
    const request = kind.store(submission);
    const { row, credentials, imageId } = request;
    // The place is taken before the request is stored, so that concurrent submissions cannot exceed the limits.
    const place = stack.use(accounts.take(accountId, { waitingOperations: 1, waitingRequests: row.sizeBytes }));
    const operation = { id: Bun.randomUUIDv7() as OperationId, accountId, kind: kind.name };
    await using staged = await requests.stage(operation.id, request);
    if (this.#stopped.signal.aborted) throw STOPPING;
    insertOperation(db, { ...operation, request: row, hadCredentials: credentials !== null, imageId, now: clock() });
    staged.keep();
    stack.move();
    this.changes.emit({ type: "accepted", operation });
    this.#enqueue(operation, { resources: row.resources ?? null, credentials, place, reserved });
    return { id: operation.id };
  }

  cancel(accountId: AccountId, id: OperationId): CancelOutcome {
    const outcome = requestCancel(this.#options.db, accountId, id, this.#options.clock());
    if (outcome === "not_found" || outcome === "terminal") return outcome;
    const live = this.#live.get(id);
    if (live !== undefined && outcome === "cancelled") this.#ended(live, "CANCELLED", null);
    live?.abort.abort(CANCELLED);
    return "accepted";
  }

  async waitForEnd(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void> {
    const live = this.#live.get(id);
    if (live === undefined || live.ended) return;
    await this.#waiters.wait(id, timeoutMs, signal);
  }

  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null {
    const live = this.#live.get(id);
    if (live === undefined || live.ended) return null;
    const over = new AbortController();
    const samples = this.#options.samplesOf(id, over.signal);
    return samples === null ? null : this.#untilEnd(live, samples, over, signal);
  }

  /** Passes `samples` on until the operation ends or `signal` fires; aborting `over` ends them. */
  async *#untilEnd(
    live: LiveOperation,
    samples: AsyncIterable<InstanceStats>,
    over: AbortController,
    signal: AbortSignal,
  ): AsyncGenerator<InstanceStats> {
    if (live.ended || signal.aborted) return;
    const stop = () => over.abort();
    using _waiter = this.#waiters.add(live.id, stop);
    signal.addEventListener("abort", stop, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", stop) };
    yield* samples;
  }

  readiness(): Readiness {
    return this.#options.readiness();
  }

  /** Number of operations of this process that have not ended, by kind and state. */
  counts(): { readonly kind: OperationKind; readonly state: "pending" | "executing"; readonly count: number }[] {
    const live = [...this.#live.values()];
    return [...this.#kinds.keys()].flatMap((kind) =>
      (["pending", "executing"] as const).map((state) => ({
        kind,
        state,
        count: live.filter((entry) => entry.kind === kind && entry.started === (state === "executing")).length,
      })),
    );
  }

  /** Number of requests that wait for the end of an operation, and of streams that last until it. */
  get waitersCount(): number {
    return this.#waiters.count;
  }

  /** Resolves when nothing is queued or running. */
  async idle(): Promise<void> {
    while (this.#runs.size > 0) await Promise.allSettled(this.#runs);
  }

  /** Ends running operations as FAILED; waiting ones stay PENDING for the next start. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort();
    for (const live of this.#live.values()) live.abort.abort(STOPPED);
    await this.idle();
    this.#subscriptions.dispose();
  }

  #enqueue(
    operation: OperationRef,
    more: Pick<LiveOperation, "resources" | "credentials" | "place" | "reserved">,
  ): void {
    const { id } = operation;
    const live: LiveOperation = {
      ...operation,
      ...more,
      abort: new AbortController(),
      laps: new Laps(),
      log: null,
      networkAudit: null,
      started: false,
      ended: false,
    };
    this.#live.set(id, live);
    const run = this.#run(live).finally(() => {
      this.#live.delete(id);
      this.#runs.delete(run);
      live.place[Symbol.dispose]();
      if (!live.ended) this.changes.emit({ type: "postponed", operation: refOf(live) });
    });
    this.#runs.add(run);
  }

  /** Runs one operation from the queue to its end; never throws. */
  async #run(live: LiveOperation): Promise<void> {
    try {
      await this.#execute(live);
    } catch (error) {
      // The log must not grow after the end. Its failure does not change how the operation ends.
      await live.log?.end().catch(() => undefined);
      await this.#end(live, error);
    }
    live.log?.[Symbol.dispose]();
    if (live.ended) await this.#forget(live);
  }

  /** Takes an operation from the queue to SUCCESS. @throws the cause of a failure; CANCELLED after a cancel */
  async #execute(live: LiveOperation): Promise<void> {
    const { scheduler, db, clock } = this.#options;
    const { signal } = live.abort;
    await this.#options.machinesKnown(signal);
    const cost = this.#kindOf(live.kind).cost(live.resources);
    if (cost !== null && !scheduler.fitsEver(cost)) throw TOO_LARGE;
    using _ticket = cost === null ? null : await scheduler.admit(live.accountId, cost, signal);
    // During a long wait, machines may have become unusable.
    await this.#options.machinesKnown(signal);
    // A run that used up the disk may be ending right now; its space is free in a moment.
    await this.#options.spaceSettled(signal);
    await ownTurn(live.accountId);
    signal.throwIfAborted();
    this.#options.requireSpace();
    if (!startOperation(db, live.id, clock())) throw CANCELLED;
    live.started = true;
    live.place[Symbol.dispose]();
    live.laps.lap("queue");
    this.changes.emit({ type: "started", operation: refOf(live) });
    live.log = this.#options.eventLogs.open(live.id);
    const auditNetwork = (audit: () => NetworkAudit): void => {
      live.networkAudit = audit;
    };
    const context = { signal, laps: live.laps, events: live.log, auditNetwork };
    await this.#publish(live, await this.#prepare(live, context));
  }

  /** The end is announced before the work's resources are disposed of. @throws CANCELLED when a cancel was accepted */
  async #publish(live: LiveOperation, prepared: Prepared): Promise<void> {
    await using _disposed = { [Symbol.asyncDispose]: () => this.#dispose(live, prepared) };
    await live.log?.end();
    await ownTurn(live.accountId);
    const { db, clock } = this.#options;
    const network = live.networkAudit?.() ?? null;
    const published = publishOperation(db, { ...prepared.publication, operationId: live.id, now: clock(), network });
    if (published === null) throw CANCELLED;
    prepared.keep(published);
    live.laps.lap("publish");
    this.#ended(live, "SUCCESS", null, published.untagged);
  }

  /** Never throws: the end of the operation stands whether or not its resources can be disposed of. */
  async #dispose(live: LiveOperation, prepared: Prepared): Promise<void> {
    try {
      await prepared[Symbol.asyncDispose]();
    } catch (error) {
      this.#options.log.error("cannot dispose of the resources of an operation", { operation: live.id, error });
    }
  }

  /** Announces the end, which the row records already. */
  #ended(live: LiveOperation, status: EndStatus, error: ErrorBody | null, untagged?: ImageId): void {
    live.ended = true;
    live.reserved?.[Symbol.dispose]();
    this.changes.emit({ type: "ended", operation: refOf(live), status, error, phases: live.laps.ended, untagged });
  }

  #kindOf(name: OperationKind): KindAtWork {
    const kind = this.#kinds.get(name);
    if (kind === undefined) throw new Error(`there is no kind of operation named ${name}`);
    return kind;
  }

  /** Reads the request and does the work. */
  async #prepare(live: LiveOperation, context: WorkContext): Promise<Prepared> {
    const request = this.#options.requests.readable(live.id, live.credentials);
    live.credentials = null;
    return await this.#kindOf(live.kind).prepare(refOf(live), request, context);
  }

  /** Removes the request's files. When that fails, the next start removes them. */
  async #forget({ id }: LiveOperation): Promise<void> {
    try {
      await this.#options.requests.forget(id);
    } catch (error) {
      this.#options.log.warn("cannot remove the request of an operation", { operation: id, error });
    }
  }

  /**
   * Ends an operation that did not succeed: CANCELLED when a cancel had been accepted, otherwise FAILED. A full disk may
   * delay the record, so this retries until the service stops; the next start ends the rows that are still EXECUTING.
   * Never throws.
   */
  async #end(live: LiveOperation, error: unknown): Promise<void> {
    const { db, clock, log } = this.#options;
    const { signal: stopped } = this.#stopped;
    // Work that had not begun stays PENDING, and runs after the next start.
    if (live.ended || (stopped.aborted && !live.started)) return;
    const body = failureOf(error, live.id, log);
    const network = live.networkAudit?.() ?? null;
    for (;;) {
      try {
        const status = failOperation(db, live.id, body, clock(), network);
        if (status !== null) this.#ended(live, status, body);
        return;
      } catch (problem) {
        log.error("cannot record the end of an operation", { operation: live.id, error: problem });
      }
      if (stopped.aborted) return;
      await sleepUnlessAborted(RECORD_RETRY_MS, stopped);
    }
  }
}

function refOf({ id, accountId, kind }: LiveOperation): OperationRef {
  return { id, accountId, kind };
}
