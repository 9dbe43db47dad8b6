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
import { ApiError, type ErrorBody, storageFull } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import { type EndStatus, OPERATION_KINDS, type OperationKind } from "../../domain/operation.ts";
import type { Readiness } from "../../domain/readiness.ts";
import type { Log } from "../../log.ts";
import { Laps, type Metrics } from "../../metrics.ts";
import { ownTurn } from "../../system/turns.ts";
import { sleepUnlessAborted } from "../../system/waiting.ts";
import type { LiveInstances } from "../instance/live-instances.ts";
import { EndWaiters } from "./end-waiters.ts";
import { countEvents, logEvents, OperationEvents, type OperationRef } from "./events.ts";
import type {
  CancelOutcome,
  Credentials,
  ImportSubmission,
  InstanceRequest,
  InstanceSubmission,
  OperationsPort,
} from "./ports.ts";
import { importToStore, instanceToStore, type Requests, type WaitingRequest } from "./requests.ts";
import type { Cost, Scheduler } from "./scheduler.ts";
import { WaitingRoom, type WaitingRoomLimits } from "./waiting-room.ts";
import type { Prepared, WorkContext, Worker } from "./work.ts";

/** How often the end of an operation is tried to be recorded while the database cannot be written. */
const RECORD_RETRY_MS = 1000;
const STOPPING = new ApiError("unavailable", "the service is stopping");
const CANCELLED = new ApiError("conflict", "the operation was cancelled");
const STOPPED = new ApiError("unavailable", "the service stopped while the operation ran");
const RESTARTED = new ApiError("unavailable", "the service was restarted while the operation ran");
const CREDENTIALS_GONE = new ApiError(
  "unavailable",
  "the service was restarted before the import began, and registry credentials are never stored",
);

const TOO_LARGE = new ApiError("unavailable", "the instance needs more memory or CPUs than this host's budget");

/** An operation that was queued or runs in this process. While it waits, its request is on the disk only. */
interface Live extends OperationRef {
  readonly resources: RequestedResources | null;
  credentials: Credentials | null;
  /** its place among what waits; given back when it starts, or leaves */
  readonly place: Disposable;
  readonly abort: AbortController;
  readonly laps: Laps;
  started: boolean;
  /** its row is terminal; what was needed for it may still have to be tidied away */
  ended: boolean;
}

export interface Workers {
  readonly imports: Worker<ImportSubmission>;
  readonly instances: Worker<InstanceRequest>;
}

export interface OperationsOptions {
  readonly db: Database;
  readonly requests: Requests;
  readonly log: Log;
  readonly clock: () => number;
  readonly metrics: Pick<Metrics, "operationsEnded" | "spawnPhaseSeconds" | "importPhaseSeconds">;
  readonly scheduler: Scheduler;
  readonly workers: Workers;
  /** where the worker of instances enters what runs */
  readonly instances: Pick<LiveInstances, "stats">;
  /** @throws ApiError `insufficient_storage` when there is too little room for more work */
  readonly requireSpace: () => void;
  /** Resolves when no room is about to be given back. */
  readonly spaceSettled: (signal: AbortSignal) => Promise<void>;
  readonly readiness: () => Readiness;
  /** Resolves when work may begin, and it is known that machines can run; throws an ApiError when they cannot. */
  readonly machinesKnown: (signal: AbortSignal) => Promise<void>;
  readonly waiting: WaitingRoomLimits;
}

/**
 * Runs operations: a row before any work, one compare-and-set per step of its life, one end. Work prepares what is to be
 * published; only this class publishes it, or ends the operation otherwise, and tells `events` once that it did.
 */
export class Operations implements OperationsPort, AsyncDisposable {
  readonly events: OperationEvents;
  readonly #options: OperationsOptions;
  readonly #live = new Map<OperationId, Live>();
  readonly #room: WaitingRoom;
  readonly #runs = new Set<Promise<void>>();
  readonly #waiters: EndWaiters;
  readonly #subscriptions = new DisposableStack();
  readonly #stopped = new AbortController();

  constructor(options: OperationsOptions) {
    this.#options = options;
    this.#room = new WaitingRoom(options.waiting);
    this.events = new OperationEvents(options.log);
    this.#waiters = this.#subscriptions.use(new EndWaiters(this.events));
    this.#subscriptions.use(countEvents(this.events, options.metrics));
    this.#subscriptions.use(logEvents(this.events, options.log));
  }

  /** Ends what a former process left running and queues what it had not begun. */
  recover(): void {
    const { db, clock } = this.#options;
    const ended = recoverOperations(db, {
      interrupted: RESTARTED.body(),
      credentialsLost: CREDENTIALS_GONE.body(),
      now: clock(),
    });
    for (const { status, error, ...operation } of ended) {
      this.events.emit({ type: "ended", operation, status, error, phases: [] });
    }
    for (const { resources, sizeBytes, ...operation } of queuedOperations(db)) {
      const place = this.#room.add(operation.accountId, sizeBytes);
      this.#enqueue(operation, { resources, credentials: null, place });
    }
  }

  submitImport(accountId: AccountId, submission: ImportSubmission): Promise<{ readonly id: OperationId }> {
    return this.#submit(accountId, "image_import", importToStore(submission), { credentials: submission.credentials });
  }

  submitInstance(accountId: AccountId, submission: InstanceSubmission): Promise<{ readonly id: OperationId }> {
    return this.#submit(accountId, "instance", instanceToStore(submission), { imageId: submission.imageId });
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
    const samples = this.#options.instances.stats(id, over.signal);
    return samples === null ? null : this.#untilEnd(live, samples, over, signal);
  }

  /** Passes samples on until the operation ends, or `signal` fires; `over` ends them. */
  async *#untilEnd(
    live: Live,
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

  /** Operations of this process that have not ended, by kind and state. */
  counts(): { readonly kind: OperationKind; readonly state: "pending" | "executing"; readonly count: number }[] {
    const live = [...this.#live.values()];
    return OPERATION_KINDS.flatMap((kind) =>
      (["pending", "executing"] as const).map((state) => ({
        kind,
        state,
        count: live.filter((entry) => entry.kind === kind && entry.started === (state === "executing")).length,
      })),
    );
  }

  /** Requests that wait for an end, and streams of figures that last until one. */
  get waitersCount(): number {
    return this.#waiters.count;
  }

  /** Resolves when nothing is queued or running. */
  async idle(): Promise<void> {
    while (this.#runs.size > 0) await Promise.allSettled(this.#runs);
  }

  /** Ends what runs as FAILED; what waits stays PENDING for the next start. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort();
    for (const live of this.#live.values()) live.abort.abort(STOPPED);
    await this.idle();
    this.#subscriptions.dispose();
  }

  async #submit(
    accountId: AccountId,
    kind: OperationKind,
    request: WaitingRequest,
    more: { readonly credentials?: Credentials | null; readonly imageId?: ImageId },
  ): Promise<{ readonly id: OperationId }> {
    const { db, clock, requests, requireSpace } = this.#options;
    const { resources = null, sizeBytes } = request.row;
    const { credentials = null, ...uses } = more;
    if (this.#stopped.signal.aborted) throw STOPPING;
    requireSpace();
    // Whatever is being stored counts, while others submit, too.
    using stack = new DisposableStack();
    const place = stack.use(this.#room.take(accountId, sizeBytes));
    const operation = { id: Bun.randomUUIDv7() as OperationId, accountId, kind };
    await using staged = await requests.stage(operation.id, request);
    if (this.#stopped.signal.aborted) throw STOPPING;
    const hadCredentials = credentials !== null;
    insertOperation(db, { ...operation, request: request.row, hadCredentials, ...uses, now: clock() });
    staged.keep();
    stack.move();
    this.#enqueue(operation, { resources, credentials, place });
    return { id: operation.id };
  }

  #enqueue(operation: OperationRef, more: Pick<Live, "resources" | "credentials" | "place">): void {
    const { id } = operation;
    const live: Live = {
      ...operation,
      ...more,
      abort: new AbortController(),
      laps: new Laps(),
      started: false,
      ended: false,
    };
    this.#live.set(id, live);
    const run = this.#run(live).finally(() => {
      this.#live.delete(id);
      this.#runs.delete(run);
      live.place[Symbol.dispose]();
      if (!live.ended) this.events.emit({ type: "postponed", operation: refOf(live) });
    });
    this.#runs.add(run);
  }

  /** The whole life of one operation in this process; never throws. */
  async #run(live: Live): Promise<void> {
    try {
      await this.#execute(live);
    } catch (error) {
      await this.#end(live, error);
    }
    if (live.ended) await this.#forget(live);
  }

  /** Takes an operation from the queue to its success. @throws what it did not succeed for; CANCELLED for a cancel */
  async #execute(live: Live): Promise<void> {
    const { scheduler, db, clock } = this.#options;
    const { signal } = live.abort;
    await this.#options.machinesKnown(signal);
    const cost = this.#cost(live);
    if (!scheduler.fitsEver(cost)) throw TOO_LARGE;
    using _ticket = await scheduler.admit(live.accountId, cost, signal);
    // The wait may have been long.
    await this.#options.machinesKnown(signal);
    // What waited is not to fail because of a run that is being ended for the room it took.
    await this.#options.spaceSettled(signal);
    await ownTurn(live.accountId);
    signal.throwIfAborted();
    this.#options.requireSpace();
    if (!startOperation(db, live.id, clock())) throw CANCELLED;
    live.started = true;
    live.place[Symbol.dispose]();
    live.laps.lap("queue");
    this.events.emit({ type: "started", operation: refOf(live) });
    await this.#publish(live, await this.#prepare(live, { signal, laps: live.laps }));
  }

  /** Nobody who waits for the end has to wait for the tidying, too. @throws CANCELLED when a cancel was accepted */
  async #publish(live: Live, prepared: Prepared): Promise<void> {
    await using _tidied = { [Symbol.asyncDispose]: () => this.#tidy(live, prepared) };
    await ownTurn(live.accountId);
    const { db, clock } = this.#options;
    const published = publishOperation(db, { ...prepared.publication, operationId: live.id, now: clock() });
    if (published === null) throw CANCELLED;
    prepared.keep(published);
    live.laps.lap("publish");
    this.#ended(live, "SUCCESS", null);
  }

  /** Its failure changes nothing of how the operation ends. */
  async #tidy(live: Live, prepared: Prepared): Promise<void> {
    try {
      await prepared[Symbol.asyncDispose]();
    } catch (error) {
      this.#options.log.error("what an operation needed was not tidied away", { operation: live.id, error });
    }
  }

  /** Tells of the end, which the row has already. */
  #ended(live: Live, status: EndStatus, error: ErrorBody | null): void {
    live.ended = true;
    this.events.emit({ type: "ended", operation: refOf(live), status, error, phases: live.laps.ended });
  }

  #cost({ kind, resources }: Live): Cost {
    const { imports, instances } = this.#options.workers;
    return (kind === "instance" ? instances : imports).cost(resources);
  }

  /** Reads the request and does the work. */
  async #prepare(live: Live, context: WorkContext): Promise<Prepared> {
    const { requests, workers } = this.#options;
    switch (live.kind) {
      case "image_import": {
        const request = requests.readImport(live.id, live.credentials);
        live.credentials = null;
        return await workers.imports.prepare(refOf(live), request, context);
      }
      case "instance":
        return await workers.instances.prepare(refOf(live), await requests.readInstance(live.id), context);
    }
  }

  /** What stays of the request is removed by the next start at the latest. */
  async #forget({ id }: Live): Promise<void> {
    try {
      await this.#options.requests.forget(id);
    } catch (error) {
      this.#options.log.warn("what an operation was sent was not removed", { operation: id, error });
    }
  }

  /**
   * Ends an operation that did not succeed: CANCELLED where a cancel had been accepted, otherwise FAILED. On a full
   * disk that cannot be recorded at once; what a stop leaves EXECUTING, the next start ends. Never throws.
   */
  async #end(live: Live, error: unknown): Promise<void> {
    const { db, clock, log } = this.#options;
    const { signal: stopped } = this.#stopped;
    // Work that had not begun stays PENDING: a stop is no failure of it.
    if (live.ended || (stopped.aborted && !live.started)) return;
    const body = this.#body(live.id, error);
    for (;;) {
      try {
        const status = failOperation(db, live.id, body, clock());
        if (status !== null) this.#ended(live, status, body);
        return;
      } catch (problem) {
        log.error("the end of an operation was not recorded", { operation: live.id, error: problem });
      }
      if (stopped.aborted) return;
      await sleepUnlessAborted(RECORD_RETRY_MS, stopped);
    }
  }

  #body(id: OperationId, error: unknown): ErrorBody {
    if (error instanceof ApiError) return error.body();
    const full = storageFull(error);
    if (full !== null) {
      this.#options.log.warn("the disk is full", { operation: id, error });
      return full.body();
    }
    this.#options.log.error("operation failed unexpectedly", { operation: id, error });
    return new ApiError("internal_error", "the operation failed because of an internal error").body();
  }
}

function refOf({ id, accountId, kind }: Live): OperationRef {
  return { id, accountId, kind };
}
