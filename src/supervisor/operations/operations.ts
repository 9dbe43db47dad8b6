import {
  failOperation,
  insertOperation,
  insertOperations,
  recoverOperations,
  requestCancel,
  requeueOperation,
  startOperation,
} from "../../db/operations.ts";
import { publishOperation } from "../../db/publish.ts";
import { queuedOperations } from "../../db/requests.ts";
import type { ApiError, ErrorBody } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import type { NetworkAudit } from "../../domain/network.ts";
import type { EndStatus, OperationKind } from "../../domain/operation.ts";
import type { Readiness } from "../../domain/readiness.ts";
import type { LogSummary } from "../../storage/events/log-summary.ts";
import { ownTurn } from "../../system/turns.ts";
import { sleepUnlessAborted, untilAborted } from "../../system/waiting.ts";
import { countSharedMemory } from "../survivors/shared-memory.ts";
import { NotBegunError } from "../survivors/survey.ts";
import { type ActiveOperation, activeOperation, refOf } from "./active-operation.ts";
import { Admission } from "./admission.ts";
import { countChanges, endReaders, logChanges, OperationChanges, type OperationRef } from "./changes.ts";
import { EndWaiters, untilEnd } from "./end-waiters.ts";
import { CANCELLED, CREDENTIALS_GONE, failureOf, HELD, interrupted, STOPPED, STOPPING, TOO_LARGE } from "./failures.ts";
import type { Kind, KindAtWork } from "./kind.ts";
import { untilLeft } from "./leave.ts";
import { type AtStop, type ForkSubmission, NOTHING_LEFT, type OperationsOptions, type Recovery } from "./options.ts";
import type { CancelOutcome, OperationsPort } from "./ports.ts";
import type { Cost, Ticket } from "./scheduler.ts";
import type { Prepared, WorkContext } from "./work.ts";

/** Delay before the next attempt to record the end of an operation when the database could not be written. */
const RECORD_RETRY_MS = 1000;

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

  /**
   * Continues the operations that a former process left EXECUTING with machines that run on, ends its others, and queues those
   * that it left PENDING or that have not begun.
   */
  recover({ survivors, problems, unbegun }: Recovery = NOTHING_LEFT): void {
    const { db, clock, scheduler } = this.#options;
    const ended = recoverOperations(db, {
      ...{ kept: survivors, unbegun, credentialsLost: CREDENTIALS_GONE.body(), now: clock() },
      interrupted: (id) => interrupted(problems.get(id)).body(),
    });
    for (const { status, error, ...operation } of ended) {
      this.changes.emit({ type: "ended", operation, status, error, phases: [] });
    }
    countSharedMemory(survivors.values(), scheduler);
    for (const [id, survivor] of survivors) {
      const { accountId, kind } = survivor.record;
      const { resources } = this.#options.requests.stored(id);
      const cost = this.#kindOf(kind).cost(resources);
      const ticket = cost === null ? null : scheduler.take(accountId, cost);
      const more = { resources, credentials: null, place: new DisposableStack(), reserved: null, ticket, survivor };
      this.#enqueue({ id, accountId, kind }, more);
    }
    for (const queued of queuedOperations(db)) this.#queueAgain(queued);
  }

  /** Queues an operation whose request is stored. */
  #queueAgain({ resources, sizeBytes, ...operation }: ReturnType<typeof queuedOperations>[number]): void {
    const { accounts } = this.#options;
    const place = accounts.add(operation.accountId, { waitingOperations: 1, waitingRequests: sizeBytes });
    this.#enqueue(operation, { resources, credentials: null, place, reserved: null, ticket: null });
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
    return samples === null ? null : untilEnd(this.#waiters, active, { samples, over, signal });
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

  /**
   * Ends what this process cannot leave to the next one, and waits for what completes now. No other operation begins afterwards;
   * the rest runs until this process exits, which must not dispose of anything.
   * @returns the number of operations that continue; null: there is none at all
   */
  async leave(atStop: (operation: OperationRef) => AtStop): Promise<number | null> {
    this.#stopped.abort();
    return await untilLeft(this.#active, { work: this.#work, atStop });
  }

  /** The same as `end`, because the service stops. */
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
      const { db } = this.#options;
      const queued = active.isRequeued ? queuedOperations(db).find((row) => row.id === id) : undefined;
      // Its log begins again, too.
      if (!active.ended) this.changes.emit({ type: "postponed", operation: refOf(active) });
      if (queued !== undefined && !this.#stopped.signal.aborted) this.#queueAgain(queued);
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
      if (!this.#requeue(active, error)) await this.#end(active, error);
    }
    active.log?.[Symbol.dispose]();
    if (active.ended) await this.#forget(active);
  }

  /** Takes an operation from the queue to SUCCESS. @throws the cause of a failure; CANCELLED after a cancel */
  async #execute(active: ActiveOperation): Promise<void> {
    const { signal } = active.abort;
    using ticket = active.ticket ?? (await this.#admit(active));
    await using survivor = active.survivor;
    const summary = survivor === null ? this.#start(active) : await this.#continue(active);
    const auditNetwork = (audit: () => NetworkAudit | null): void => {
      active.networkAudit = audit;
    };
    const reduceCost = (less: Cost): void => ticket?.reduce(less);
    const left = survivor === null || summary === null ? undefined : { survivor, summary };
    const { laps, log: events } = active;
    if (events === null) throw new Error("an operation without a log");
    const context = { signal, laps, events, auditNetwork, reduceCost, left };
    await this.#publish(active, await this.#prepare(active, context));
  }

  /** @throws CANCELLED; ApiError `insufficient_storage` */
  #start(active: ActiveOperation): null {
    const { db, clock, eventLogs } = this.#options;
    active.abort.signal.throwIfAborted();
    this.#options.requireSpace();
    if (!startOperation(db, active.id, clock())) throw CANCELLED;
    active.started = true;
    active.place[Symbol.dispose]();
    active.laps.lap("queue");
    this.changes.emit({ type: "started", operation: refOf(active) });
    active.log = eventLogs.open(active.id);
    return null;
  }

  /** Continues an operation that a former process has started. Returns what its log says. @throws NotBegunError */
  async #continue(active: ActiveOperation): Promise<LogSummary> {
    active.started = true;
    const reopened = await this.#options.eventLogs.reopen(active.id);
    if (reopened === null) throw new NotBegunError("the operation has no event yet");
    active.log = reopened.log;
    return reopened.summary;
  }

  /** Returns false when the operation must end instead of beginning again. */
  #requeue(active: ActiveOperation, error: unknown): boolean {
    const { db } = this.#options;
    const begins = error instanceof NotBegunError && active.kind === "instance" && requeueOperation(db, active.id);
    active.isRequeued = begins;
    return begins;
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
    const kind = this.#kindOf(active.kind);
    active.reserved ??= await kind.reserveAgain(request);
    return await kind.prepare(refOf(active), request, context);
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
