import type { Database } from "../../db/database.ts";
import {
  type ForkOrigin,
  failOperation,
  insertOperation,
  insertOperations,
  recoverOperations,
  requestCancel,
  startOperation,
} from "../../db/operations.ts";
import { publishOperation } from "../../db/publish.ts";
import { queuedOperations } from "../../db/requests.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import type { ApiError, ErrorBody } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import type { NetworkAudit } from "../../domain/network.ts";
import type { EndStatus, OperationKind } from "../../domain/operation.ts";
import type { Readiness } from "../../domain/readiness.ts";
import type { Log } from "../../log.ts";
import type { EventLogs } from "../../storage/events/event-logs.ts";
import { ownTurn } from "../../system/turns.ts";
import { sleepUnlessAborted, untilAborted } from "../../system/waiting.ts";
import { type ActiveOperation, activeOperation, refOf } from "./active-operation.ts";
import { Admission } from "./admission.ts";
import { countChanges, endReaders, logChanges, OperationChanges, type OperationRef } from "./changes.ts";
import { EndWaiters } from "./end-waiters.ts";
import { CANCELLED, CREDENTIALS_GONE, failureOf, HELD, RESTARTED, STOPPED, STOPPING, TOO_LARGE } from "./failures.ts";
import type { Kind, KindAtWork } from "./kind.ts";
import type { CancelOutcome, OperationsPort } from "./ports.ts";
import type { Requests } from "./requests.ts";
import type { Cost, Scheduler, Ticket } from "./scheduler.ts";
import type { Prepared, WorkContext } from "./work.ts";

/** Delay before the next attempt to record the end of an operation when the database could not be written. */
const RECORD_RETRY_MS = 1000;

/** An operation that begins with a machine of its own, a fork. */
export interface ForkSubmission<Submission> {
  readonly id: OperationId;
  readonly submission: Submission;
  readonly fork: ForkOrigin;
  /** its share of the budget, which is the operation's once it is inserted */
  readonly ticket: Ticket;
  /** changes further rows in the transaction that inserts the operations */
  readonly also?: (id: OperationId) => void;
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
  /** Resolves when no work is being ended to free disk space. */
  readonly spaceSettled: (signal: AbortSignal) => Promise<void>;
  readonly readiness: () => Readiness;
  /** Resolves when work may begin, because machines can run. @throws ApiError when they cannot */
  readonly machinesReady: (signal: AbortSignal) => Promise<void>;
  readonly accounts: Accounts;
}

/**
 * Runs operations. Each one is a row before its work begins, changes state by compare-and-set, and ends exactly once. A
 * worker prepares a publication; only this class publishes it or ends the operation in another way, and emits one event.
 */
export class Operations implements OperationsPort, AsyncDisposable {
  readonly changes: OperationChanges;
  readonly admission = new Admission();
  readonly #options: OperationsOptions;
  readonly #kinds: ReadonlyMap<OperationKind, KindAtWork>;
  readonly #active = new Map<OperationId, ActiveOperation>();
  readonly #work = new Set<Promise<void>>();
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
    // The request of an ended operation may have contained secrets.
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
      this.#enqueue(operation, { resources, credentials: null, place, reserved: null, ticket: null });
    }
  }

  async submit<Submission>(
    accountId: AccountId,
    kind: Pick<Kind<Submission, unknown, unknown, never>, "name" | "store">,
    submission: NoInfer<Submission>,
    also?: (id: OperationId) => void,
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
    const hadCredentials = credentials !== null;
    insertOperation(db, { ...operation, request: row, hadCredentials, imageId, now: clock(), also });
    staged.keep();
    stack.move();
    this.changes.emit({ type: "accepted", operation });
    this.#enqueue(operation, { resources: row.resources ?? null, credentials, place, reserved, ticket: null });
    return { id: operation.id };
  }

  /**
   * Begins operations whose machines exist, all of them or none: they wait for nothing.
   * @throws ApiError `unavailable` when the service stops or admits no work; `not_found` when the image is gone; what `also` throws
   */
  begin<Submission>(
    accountId: AccountId,
    kind: Pick<Kind<Submission, unknown, unknown, never>, "name" | "store">,
    forks: readonly ForkSubmission<NoInfer<Submission>>[],
  ): void {
    const { db, clock, accounts } = this.#options;
    if (this.#stopped.signal.aborted) throw STOPPING;
    if (this.admission.isHeld) throw HELD;
    const now = clock();
    const rows = forks.map(({ id, submission, fork, also }) => {
      const { row, imageId } = kind.store(submission);
      return { id, accountId, kind: kind.name, request: row, hadCredentials: false, imageId, fork, now, also };
    });
    insertOperations(db, rows);
    for (const [index, { id, ticket }] of forks.entries()) {
      const operation = { id, accountId, kind: kind.name };
      this.changes.emit({ type: "accepted", operation });
      const resources = rows[index]?.request.resources ?? null;
      const place = accounts.add(accountId, { waitingOperations: 1 });
      this.#enqueue(operation, { resources, credentials: null, place, reserved: null, ticket });
    }
  }

  cancel(accountId: AccountId, id: OperationId): CancelOutcome {
    const outcome = requestCancel(this.#options.db, accountId, id, this.#options.clock());
    if (outcome === "not_found" || outcome === "terminal") return outcome;
    const active = this.#active.get(id);
    if (active !== undefined && outcome === "cancelled") this.#ended(active, "CANCELLED", null);
    active?.abort.abort(CANCELLED);
    return "accepted";
  }

  async waitForEnd(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void> {
    const active = this.#active.get(id);
    if (active === undefined || active.ended) return;
    await this.#waiters.wait(id, timeoutMs, signal);
  }

  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null {
    const active = this.#active.get(id);
    if (active === undefined || active.ended) return null;
    const over = new AbortController();
    const samples = this.#options.samplesOf(id, over.signal);
    return samples === null ? null : this.#untilEnd(active, samples, over, signal);
  }

  /** Passes `samples` on until the operation ends or `signal` fires; aborting `over` ends them. */
  async *#untilEnd(
    active: ActiveOperation,
    samples: AsyncIterable<InstanceStats>,
    over: AbortController,
    signal: AbortSignal,
  ): AsyncGenerator<InstanceStats> {
    if (active.ended || signal.aborted) return;
    const stop = () => over.abort();
    using _waiter = this.#waiters.add(active.id, stop);
    signal.addEventListener("abort", stop, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", stop) };
    yield* samples;
  }

  readiness(): Readiness {
    return this.#options.readiness();
  }

  /** Number of operations of this process that have not ended, by kind and state. */
  counts(): { readonly kind: OperationKind; readonly state: "pending" | "executing"; readonly count: number }[] {
    const active = [...this.#active.values()];
    return [...this.#kinds.keys()].flatMap((kind) =>
      (["pending", "executing"] as const).map((state) => ({
        kind,
        state,
        count: active.filter((entry) => entry.kind === kind && entry.started === (state === "executing")).length,
      })),
    );
  }

  /** Number of requests that wait for the end of an operation, and of streams that last until it. */
  get waitersCount(): number {
    return this.#waiters.count;
  }

  /** Resolves when nothing is queued or running. */
  async idle(): Promise<void> {
    while (this.#work.size > 0) await Promise.allSettled(this.#work);
  }

  /** Ends running operations as FAILED; waiting ones stay PENDING for the next start. No other operation begins afterwards. */
  async end(reason: ApiError): Promise<void> {
    this.#stopped.abort();
    for (const active of this.#active.values()) active.abort.abort(reason);
    await this.idle();
  }

  /** The same, because the service stops. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.end(STOPPED);
    this.#subscriptions.dispose();
  }

  #enqueue(operation: OperationRef, more: Parameters<typeof activeOperation>[1]): void {
    const { id } = operation;
    const active = activeOperation(operation, more);
    this.#active.set(id, active);
    const work = this.#run(active).finally(() => {
      this.#active.delete(id);
      this.#work.delete(work);
      active.place[Symbol.dispose]();
      if (!active.ended) this.changes.emit({ type: "postponed", operation: refOf(active) });
    });
    this.#work.add(work);
  }

  /** Runs one operation from the queue to its end; never throws. */
  async #run(active: ActiveOperation): Promise<void> {
    try {
      await this.#execute(active);
    } catch (error) {
      // The log must not grow after the end. Its failure does not change how the operation ends.
      await active.log?.end().catch(() => undefined);
      await this.#end(active, error);
    }
    active.log?.[Symbol.dispose]();
    if (active.ended) await this.#forget(active);
  }

  /** Takes an operation from the queue to SUCCESS. @throws the cause of a failure; CANCELLED after a cancel */
  async #execute(active: ActiveOperation): Promise<void> {
    const { db, clock } = this.#options;
    const { signal } = active.abort;
    using ticket = active.ticket ?? (await this.#admit(active));
    signal.throwIfAborted();
    this.#options.requireSpace();
    if (!startOperation(db, active.id, clock())) throw CANCELLED;
    active.started = true;
    active.place[Symbol.dispose]();
    active.laps.lap("queue");
    this.changes.emit({ type: "started", operation: refOf(active) });
    active.log = this.#options.eventLogs.open(active.id);
    const auditNetwork = (audit: () => NetworkAudit | null): void => {
      active.networkAudit = audit;
    };
    const reduceCost = (less: Cost): void => ticket?.reduce(less);
    const context = { signal, laps: active.laps, events: active.log, auditNetwork, reduceCost };
    await this.#publish(active, await this.#prepare(active, context));
  }

  /** Waits until the work may begin. Returns its share of the budget; null: it holds none. */
  async #admit(active: ActiveOperation): Promise<Ticket | null> {
    const { scheduler, machinesReady, spaceSettled } = this.#options;
    const { signal } = active.abort;
    await machinesReady(signal);
    const cost = this.#kindOf(active.kind).cost(active.resources);
    if (cost !== null && !scheduler.fitsEver(cost)) throw TOO_LARGE;
    using undo = new DisposableStack();
    const ticket = cost === null ? null : undo.use(await scheduler.admit(active.accountId, cost, signal));
    // During a long wait, machines may have become unusable.
    await machinesReady(signal);
    // An instance that used up the disk may be ending right now; its space is free in a moment.
    await spaceSettled(signal);
    await untilAborted(this.admission.opened(), signal);
    await ownTurn(active.accountId);
    undo.move();
    return ticket;
  }

  /** The end is announced before the work's resources are disposed of. @throws CANCELLED when a cancel was accepted */
  async #publish(active: ActiveOperation, prepared: Prepared): Promise<void> {
    await using _disposed = { [Symbol.asyncDispose]: () => this.#dispose(active, prepared) };
    await active.log?.end();
    await ownTurn(active.accountId);
    const { db, clock } = this.#options;
    const network = active.networkAudit?.() ?? null;
    const published = publishOperation(db, { ...prepared.publication, operationId: active.id, now: clock(), network });
    if (published === null) throw CANCELLED;
    prepared.keep(published);
    active.laps.lap("publish");
    this.#ended(active, "SUCCESS", null, published.untagged);
  }

  /** Never throws: the end of the operation stands whether or not its resources can be disposed of. */
  async #dispose(active: ActiveOperation, prepared: Prepared): Promise<void> {
    try {
      await prepared[Symbol.asyncDispose]();
    } catch (error) {
      this.#options.log.error("cannot dispose of the resources of an operation", { operation: active.id, error });
    }
  }

  /** Announces the end, which the row records already. */
  #ended(active: ActiveOperation, status: EndStatus, error: ErrorBody | null, untagged?: ImageId): void {
    active.ended = true;
    active.reserved?.[Symbol.dispose]();
    this.changes.emit({ type: "ended", operation: refOf(active), status, error, phases: active.laps.ended, untagged });
  }

  #kindOf(name: OperationKind): KindAtWork {
    const kind = this.#kinds.get(name);
    if (kind === undefined) throw new Error(`there is no kind of operation named ${name}`);
    return kind;
  }

  /** Reads the request and does the work. */
  async #prepare(active: ActiveOperation, context: WorkContext): Promise<Prepared> {
    const request = this.#options.requests.readable(active.id, active.credentials);
    active.credentials = null;
    return await this.#kindOf(active.kind).prepare(refOf(active), request, context);
  }

  /** Removes the request's files. When that fails, the next start removes them. */
  async #forget({ id }: ActiveOperation): Promise<void> {
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
  async #end(active: ActiveOperation, error: unknown): Promise<void> {
    const { db, clock, log } = this.#options;
    const { signal: stopped } = this.#stopped;
    // Work that had not begun stays PENDING, and runs after the next start.
    if (active.ended || (stopped.aborted && !active.started)) return;
    const body = failureOf(error, active.id, log);
    const network = active.networkAudit?.() ?? null;
    for (;;) {
      try {
        const status = failOperation(db, active.id, body, clock(), network);
        if (status !== null) this.#ended(active, status, body);
        return;
      } catch (problem) {
        log.error("cannot record the end of an operation", { operation: active.id, error: problem });
      }
      if (stopped.aborted) return;
      await sleepUnlessAborted(RECORD_RETRY_MS, stopped);
    }
  }
}
