import { samples } from "../cgroup/stats.ts";
import type { Database } from "../db/database.ts";
import {
  failOperation,
  getOperation,
  insertOperation,
  type NewOperation,
  operationRequest,
  pendingOperations,
  recoverOperations,
  requestCancel,
  startOperation,
} from "../db/operations.ts";
import { ApiError, type ErrorBody, storageFull } from "../domain/errors.ts";
import type { AccountId, OperationId } from "../domain/ids.ts";
import { OPERATION_KINDS, type OperationKind } from "../domain/operation.ts";
import type { Log } from "../log.ts";
import { Laps, type Metrics } from "../metrics.ts";
import { ownTurn, startTimer, untilAborted } from "../system/waiting.ts";
import type { Machine } from "../vm/vmm.ts";
import type {
  CancelOutcome,
  ImportSubmission,
  InstanceStats,
  InstanceSubmission,
  OperationsPort,
  Readiness,
} from "./ports.ts";
import type { Cost, Scheduler } from "./scheduler.ts";

const STATS_INTERVAL_MS = 1000;
/** How often the end of an operation is tried to be recorded while the database cannot be written. */
const RECORD_RETRY_MS = 1000;
const CANCELLED = new ApiError("conflict", "the operation was cancelled");
const STOPPED = new ApiError("unavailable", "the service stopped while the operation ran");
const RESTARTED = new ApiError("unavailable", "the service was restarted while the operation ran");
const CREDENTIALS_GONE = new ApiError(
  "unavailable",
  "the service was restarted before the import began, and registry credentials are never stored",
);

const TOO_LARGE = new ApiError("unavailable", "the instance needs more memory or CPUs than this host's budget");

export type Credentials = NonNullable<ImportSubmission["credentials"]>;

/** An operation that was queued or runs in this process. */
interface Live {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
  readonly abort: AbortController;
  /** resolves when the operation's row is terminal */
  readonly ended: PromiseWithResolvers<void>;
  readonly laps: Laps;
  started: boolean;
  machine: Machine | null;
}

export interface WorkContext {
  readonly signal: AbortSignal;
  /** takes the time of each step as it ends */
  readonly laps: Laps;
  onMachine(machine: Machine): void;
  /** Called once the result is there for everybody to see, before what was needed for it is tidied away. */
  onPublished(): void;
}

/** What the work of one kind of operation needs and how it is done; throws what made it fail. */
export interface Work {
  readonly cost: Cost;
  /** Publishes its result as its last step; false when the operation was cancelled in the meantime. */
  run(context: WorkContext): Promise<boolean>;
}

export interface Workers {
  importImage(id: OperationId, accountId: AccountId, submission: ImportSubmission): Work;
  instance(id: OperationId, accountId: AccountId, submission: InstanceSubmission): Work;
}

export interface OperationsOptions {
  readonly db: Database;
  readonly log: Log;
  readonly clock: () => number;
  readonly metrics: Pick<Metrics, "operationsEnded" | "spawnPhaseSeconds" | "importPhaseSeconds">;
  readonly scheduler: Scheduler;
  readonly workers: Workers;
  /** @throws ApiError `insufficient_storage` when there is too little room for more work */
  readonly requireSpace: () => void;
  readonly readiness: () => Readiness;
  /** Resolves when work may begin, and it is known that machines can run; throws an ApiError when they cannot. */
  readonly machinesKnown: (signal: AbortSignal) => Promise<void>;
  /** operations of one account that may wait */
  readonly queueCountMax: number;
}

/** Runs operations: a row before any work, one compare-and-set per step of its life, one end. */
export class Operations implements OperationsPort, AsyncDisposable {
  readonly #options: OperationsOptions;
  readonly #live = new Map<OperationId, Live>();
  readonly #runs = new Set<Promise<void>>();
  #stopping = false;

  constructor(options: OperationsOptions) {
    this.#options = options;
  }

  /** Ends what a former process left running and queues what it had not begun. */
  recover(): void {
    const { db, log, clock } = this.#options;
    const ended = recoverOperations(db, {
      interrupted: RESTARTED.body(),
      credentialsLost: CREDENTIALS_GONE.body(),
      now: clock(),
    });
    for (const id of ended.failed) log.warn("operation was cut off by a restart", { operation: id });
    for (const id of ended.cancelled) log.info("operation ended", { operation: id, status: "CANCELLED" });
    for (const row of pendingOperations(db)) {
      const request = operationRequest(db, row.id);
      if (request !== null) this.#enqueue(row.id, row.accountId, row.kind, request);
    }
  }

  submitImport(accountId: AccountId, submission: ImportSubmission): { readonly id: OperationId } {
    const { credentials, ...request } = submission;
    const stored = { ...request, credentials: null };
    const uses = { fileIds: (submission.files ?? []).map(({ fileId }) => fileId) };
    const hadCredentials = credentials !== null;
    return this.#submit(accountId, "image_import", { stored, full: submission, hadCredentials, uses });
  }

  submitInstance(accountId: AccountId, submission: InstanceSubmission): { readonly id: OperationId } {
    const { imageId, files } = submission;
    const uses = { imageId, fileIds: files.map(({ fileId }) => fileId) };
    return this.#submit(accountId, "instance", { stored: submission, full: submission, hadCredentials: false, uses });
  }

  cancel(accountId: AccountId, id: OperationId): CancelOutcome {
    const outcome = requestCancel(this.#options.db, accountId, id, this.#options.clock());
    if (outcome === "not_found" || outcome === "terminal") return outcome;
    const live = this.#live.get(id);
    if (outcome === "cancelled" && live !== undefined) {
      live.ended.resolve();
      this.#count(live.kind, "CANCELLED");
    }
    live?.abort.abort(CANCELLED);
    return "accepted";
  }

  async waitForEnd(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void> {
    const live = this.#live.get(id);
    if (live === undefined || signal.aborted) return;
    using timer = startTimer(timeoutMs);
    // The client's departure is one of the ends of this wait, not a failure.
    await untilAborted(Promise.race([live.ended.promise, timer.fired]), signal).catch(() => undefined);
  }

  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null {
    const live = this.#live.get(id);
    if (live === undefined || live.machine === null) return null;
    const ended = new AbortController();
    void live.ended.promise.then(() => ended.abort());
    return samples(live.machine.cgroup, STATS_INTERVAL_MS, AbortSignal.any([signal, ended.signal]));
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

  /** Resolves when nothing is queued or running. */
  async idle(): Promise<void> {
    while (this.#runs.size > 0) await Promise.allSettled(this.#runs);
  }

  /** Ends what runs as FAILED; what waits stays PENDING for the next start. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping = true;
    for (const live of this.#live.values()) live.abort.abort(STOPPED);
    await this.idle();
  }

  #submit(
    accountId: AccountId,
    kind: OperationKind,
    request: {
      readonly stored: object;
      readonly full: object;
      readonly hadCredentials: boolean;
      readonly uses?: Pick<NewOperation, "imageId" | "fileIds">;
    },
  ): { readonly id: OperationId } {
    const { db, clock, queueCountMax } = this.#options;
    if (this.#stopping) throw new ApiError("unavailable", "the service is stopping");
    this.#options.requireSpace();
    if (this.#waitingCount(accountId) >= queueCountMax) {
      throw new ApiError("too_many_requests", `${queueCountMax} operations of this account are waiting already`);
    }
    const id = Bun.randomUUIDv7() as OperationId;
    const { stored, hadCredentials, uses } = request;
    insertOperation(db, { id, accountId, kind, request: stored, hadCredentials, ...uses, now: clock() });
    this.#enqueue(id, accountId, kind, request.full);
    return { id };
  }

  #waitingCount(accountId: AccountId): number {
    let count = 0;
    for (const live of this.#live.values()) if (live.accountId === accountId && !live.started) count += 1;
    return count;
  }

  #enqueue(id: OperationId, accountId: AccountId, kind: OperationKind, request: object): void {
    const live: Live = {
      id,
      accountId,
      kind,
      abort: new AbortController(),
      ended: Promise.withResolvers<void>(),
      laps: new Laps(),
      started: false,
      machine: null,
    };
    this.#live.set(id, live);
    const run = this.#run(live, request).then(() => {
      live.ended.resolve();
      this.#live.delete(id);
      this.#runs.delete(run);
    });
    this.#runs.add(run);
  }

  /** The whole life of one operation in this process; never throws. */
  async #run(live: Live, request: object): Promise<void> {
    const { scheduler, db, clock, log } = this.#options;
    const { signal } = live.abort;
    try {
      await this.#options.machinesKnown(signal);
      const work = this.#work(live, request);
      if (!scheduler.fitsEver(work.cost)) throw TOO_LARGE;
      using _ticket = await scheduler.admit(live.accountId, work.cost, signal);
      await ownTurn();
      signal.throwIfAborted();
      this.#options.requireSpace();
      if (!startOperation(db, live.id, clock())) return;
      live.started = true;
      live.laps.lap("queue");
      log.info("operation started", { operation: live.id, kind: live.kind });
      const onMachine = (machine: Machine) => {
        live.machine = machine;
      };
      const onPublished = () => this.#succeeded(live);
      const published = await work.run({ signal, laps: live.laps, onMachine, onPublished });
      if (!published) await this.#end(live, CANCELLED);
    } catch (error) {
      // Work that had not begun stays PENDING: a stop is no failure of it, and a cancel has ended it already.
      if (signal.aborted && !live.started && this.#isPending(live)) return;
      await this.#end(live, error);
    }
  }

  /** Nobody who waits for the end has to wait for the tidying, too. */
  #succeeded(live: Live): void {
    live.laps.lap("publish");
    this.#count(live.kind, "SUCCESS");
    this.#options.log.info("operation ended", { operation: live.id, status: "SUCCESS", phases: this.#phases(live) });
    live.ended.resolve();
  }

  /** Counts the steps of an operation that ended, and gives them for the log. */
  #phases({ kind, laps }: Live): Readonly<Record<string, number>> {
    const { importPhaseSeconds, spawnPhaseSeconds } = this.#options.metrics;
    const histogram = kind === "instance" ? spawnPhaseSeconds : importPhaseSeconds;
    for (const [phase, ms] of laps.ended) histogram.observe({ phase }, ms / 1000);
    return Object.fromEntries(laps.ended.map(([phase, ms]) => [`${phase}_ms`, Math.round(ms)]));
  }

  #count(kind: OperationKind, status: "SUCCESS" | "FAILED" | "CANCELLED"): void {
    this.#options.metrics.operationsEnded.add({ kind, state: status.toLowerCase() });
  }

  #isPending({ accountId, id }: Live): boolean {
    return getOperation(this.#options.db, accountId, id)?.status === "PENDING";
  }

  #work({ id, accountId, kind }: Live, request: object): Work {
    switch (kind) {
      case "image_import":
        return this.#options.workers.importImage(id, accountId, request as ImportSubmission);
      case "instance":
        return this.#options.workers.instance(id, accountId, request as InstanceSubmission);
    }
  }

  /**
   * Ends an operation that did not succeed: CANCELLED where a cancel had been accepted, otherwise FAILED. On a full
   * disk that cannot be recorded at once; what a stop leaves EXECUTING, the next start ends.
   */
  async #end(live: Live, error: unknown): Promise<void> {
    const { db, clock, log } = this.#options;
    const { id, accountId, kind } = live;
    const body = this.#body(id, error);
    for (;;) {
      try {
        if (!failOperation(db, id, body, clock())) return;
        const status = getOperation(db, accountId, id)?.status === "CANCELLED" ? "CANCELLED" : "FAILED";
        this.#count(kind, status);
        const why = { error: body.error, reason: body.message };
        return log.info("operation ended", { operation: id, status, ...why, phases: this.#phases(live) });
      } catch (problem) {
        log.error("the end of an operation was not recorded", { operation: id, error: problem });
        if (this.#stopping) return;
        await Bun.sleep(RECORD_RETRY_MS);
      }
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
