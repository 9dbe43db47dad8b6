import type { Database } from "../../db/database.ts";
import { forgetStates, type KeptStates } from "../../db/sandboxes/forgetting.ts";
import { type MemoryImageRow, memoryImageOf } from "../../db/sandboxes/memory-images.ts";
import {
  changeState,
  failureOf,
  findSandbox,
  requireSandbox,
  type SandboxRow,
  sandboxesToComplete,
  updateSandbox,
} from "../../db/sandboxes/rows.ts";
import type { StoredEnding } from "../../db/sandboxes/schema.ts";
import { type HeadTarget, movedHead } from "../../db/sandboxes/states.ts";
import { ApiError, type ErrorBody } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import type { AccountId, OperationId, SandboxId } from "../../domain/ids.ts";
import { nextSandboxState, type SandboxState, type StateReason, sandboxConflict } from "../../domain/sandbox.ts";
import type { Log } from "../../log.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import { ownTurn } from "../../system/turns.ts";
import type { AccountChanges } from "../account-changes.ts";
import type { SandboxRun, SavingEnd } from "../kinds/sandbox.ts";
import { sandboxKind } from "../kinds/sandbox.ts";
import { type MemoryImages, notResumable } from "../memory/memory-images.ts";
import type { OperationChange } from "../operations/changes.ts";
import type { Operations } from "../operations/operations.ts";
import type { ForkSubmission } from "../operations/options.ts";
import { releaseImage } from "../reclaim.ts";
import type { StateChange } from "./journal.ts";
import type { Lives } from "./lives.ts";

export interface TransitionsOptions {
  readonly db: Database;
  readonly clock: () => number;
  readonly log: Log;
  readonly operations: Pick<Operations, "submit" | "begin" | "cancel" | "changes">;
  readonly lives: Lives;
  /** number of states without a tag that a sandbox keeps */
  readonly keepStates: number;
  readonly layers: LayerStore;
  readonly changes: AccountChanges;
  readonly memory: Pick<MemoryImages, "check" | "settle" | "sweep">;
}

/** How a sandbox continues. */
export interface Resumption {
  readonly reason: StateReason;
  /** its life from now; absent: the one of its settings */
  readonly lifeMs?: number | undefined;
  /** true: with its memory, or not at all; false: from its files; absent: with its memory when that is kept */
  readonly memory?: boolean | undefined;
}

/** A transaction that is not committed yet. */
interface Prepared {
  readonly operationId: OperationId;
  /** null: the state stays the same */
  readonly change: StateChange | null;
}

/** A sandbox that begins with a machine of its own. */
export interface SandboxBegin extends Omit<ForkSubmission<SandboxRun>, "also"> {
  readonly sandboxId: SandboxId;
  /** inserts its row */
  readonly insert: (operationId: OperationId) => StateChange;
}

/** The ways between the states of sandboxes, with the starts and ends of their instances. */
export class Transitions {
  readonly #options: TransitionsOptions;
  /** the sandboxes of instances and checkpoints that have not ended */
  readonly #sandboxOf = new Map<OperationId, SandboxId>();
  /** continuations of requests after the ends of instances */
  readonly #next = new Map<OperationId, (hasSucceeded: boolean) => void>();

  constructor(options: TransitionsOptions) {
    this.#options = options;
    options.operations.changes.subscribe((change) => this.#onOperation(change));
    // The rows of kept memory go with states.
    options.lives.journal.listen(({ row: { state } }) => {
      if (state !== "pausing" && state !== "resuming") void options.memory.sweep();
    });
  }

  /** Forgets excess states of the sandbox when the operation has ended. */
  follow(operationId: OperationId, id: SandboxId): void {
    this.#sandboxOf.set(operationId, id);
  }

  /** Continues with a sandbox whose instance a former process has left running, and with the request that ends it. */
  continue(row: SandboxRow, operationId: OperationId): void {
    const { lives } = this.#options;
    this.#sandboxOf.set(operationId, row.id);
    lives.journal.continue(row);
    if (row.state !== "pausing") return;
    const { reason, tag } = row.ending ?? { reason: "pause", tag: null };
    this.#after(row, operationId, row.ending);
    lives.end(operationId, { reason, tag });
  }

  /** Continues with the requests that have saved the files of sandboxes in a former process, once operations are recovered. */
  completeAll(): void {
    const rows = sandboxesToComplete(this.#options.db);
    if (rows.length === 0) return;
    void ownTurn().then(async () => {
      for (const row of rows) await this.#complete(row, row.ending?.then ?? null);
    });
  }

  /** Queues an instance, and makes `change` in the same transaction. @throws as `Operations.submit` and `change` do */
  async start(
    { id, accountId }: Pick<SandboxRow, "id" | "accountId">,
    run: SandboxRun,
    change: (operationId: OperationId) => StateChange | null,
  ): Promise<SandboxRow> {
    const { db, operations, lives } = this.#options;
    const { journal } = lives;
    let prepared: Prepared | null = null;
    try {
      await operations.submit(accountId, sandboxKind, run, (operationId) => {
        const changed = change(operationId);
        prepared = { operationId, change: changed };
        this.#sandboxOf.set(operationId, id);
        if (changed !== null) journal.prepare(changed);
      });
    } catch (error) {
      this.#abandon(prepared);
      throw error;
    }
    journal.commit(id);
    return requireSandbox(db, accountId, id);
  }

  /**
   * Begins the first instances of sandboxes, whose machines exist, all or none. Each makes its change in the same transaction.
   * @throws as `Operations.begin` and `insert` do
   */
  begin(accountId: AccountId, forks: readonly SandboxBegin[]): void {
    const { operations, lives } = this.#options;
    const { journal } = lives;
    const prepared: Prepared[] = [];
    const begins = forks.map(({ sandboxId, insert, ...fork }) => ({
      ...fork,
      also: (operationId: OperationId) => {
        const change = insert(operationId);
        prepared.push({ operationId, change });
        this.#sandboxOf.set(operationId, sandboxId);
        journal.prepare(change);
      },
    }));
    try {
      operations.begin(accountId, sandboxKind, begins);
    } catch (error) {
      for (const one of prepared) this.#abandon(one);
      throw error;
    }
    for (const { sandboxId } of forks) journal.commit(sandboxId);
  }

  #abandon(prepared: Prepared | null): void {
    if (prepared === null) return;
    this.#sandboxOf.delete(prepared.operationId);
    if (prepared.change !== null) this.#options.lives.journal.forget(prepared.change);
  }

  /**
   * Begins to capture a running sandbox. Returns its operation.
   * @param then the rest of the request, which follows the save, also in the next process of the service
   * @throws ApiError `conflict`
   */
  capture(
    { id }: SandboxRow,
    reason: StateReason,
    { memory, ...end }: SavingEnd,
    then: StoredEnding["then"] = null,
  ): OperationId {
    const { lives } = this.#options;
    const ending = { ...end, then };
    const row = lives.journal.change(id, "pause", { reason, memory: memory !== undefined, ending });
    const operationId = instanceOf(row, "pausing");
    this.#after(row, operationId, ending);
    lives.end(operationId, { ...end, ...given({ memory }) });
    return operationId;
  }

  /**
   * Starts an instance at the head, or continues the one whose memory is kept.
   * @throws ApiError `conflict`; `not_resumable` when the memory cannot be continued here; as `Operations.submit` does
   */
  async resume({ id, accountId }: SandboxRow, { reason, lifeMs, memory: wish }: Resumption): Promise<void> {
    const { db, clock } = this.#options;
    const row = requireSandbox(db, accountId, id);
    if (nextSandboxState(row.state, "resume") === null) throw sandboxConflict(row.state);
    const image = wish === false ? null : memoryImageOf(db, id);
    if (image === null && wish === true) throw notResumable("its memory is not kept");
    if (image !== null) await this.#options.memory.check(image);
    const memory = image !== null;
    await this.start(row, memory ? continuationOf(row, image) : runOf(row), (operationId) => {
      const now = clock();
      // A rollback may have moved the head meanwhile.
      if (findSandbox(db, id)?.headId !== row.headId) throw sandboxConflict(row.state);
      if (memory && memoryImageOf(db, id)?.id !== image.id) throw notResumable("its memory is no longer kept");
      const endsAt = now + (lifeMs ?? row.timeoutMs);
      return { ...changeState(db, id, "resume", { operationId, endsAt, now }), reason, memory };
    });
  }

  /** Moves the head of a sandbox without a machine. @throws ApiError `conflict`, `not_found` */
  moveHead({ id, accountId }: SandboxRow, target: HeadTarget): void {
    const { db, clock, lives } = this.#options;
    const { journal } = lives;
    const now = clock();
    const change = db.transaction(() => {
      const head = movedHead(db, requireSandbox(db, accountId, id), target, now);
      return { ...changeState(db, id, "rollback", { ...head, now }), reason: "request" as const };
    });
    journal.report(change);
  }

  /** Ends the machine of a running sandbox, and starts another one at the target. @throws ApiError `conflict`, `not_found` */
  restart({ id, accountId }: SandboxRow, target: HeadTarget): void {
    const { db, clock, lives } = this.#options;
    const { journal } = lives;
    const now = clock();
    const { operationId, change } = db.transaction(() => {
      const row = requireSandbox(db, accountId, id);
      const head = movedHead(db, row, target, now);
      const changed = changeState(db, id, "restart", { ...head, operationId: null, now });
      return { operationId: instanceOf(row), change: { ...changed, reason: "request" as const } };
    });
    journal.report(change);
    // The log has the end of the earlier processes before the start of the new ones.
    this.#next.set(operationId, () => void this.#startAgain(change.row));
    lives.end(operationId, "discard");
  }

  /** Never throws. */
  async #startAgain({ id, accountId }: SandboxRow): Promise<void> {
    const { db, lives, log } = this.#options;
    const row = findSandbox(db, id);
    if (row === null || row.state !== "resuming" || row.operationId !== null) return;
    try {
      await this.start({ id, accountId }, runOf(row), (operationId) => {
        const now = findSandbox(db, id);
        if (now?.state !== "resuming" || now.operationId !== null) throw sandboxConflict(now?.state ?? "ended");
        updateSandbox(db, id, { operationId });
        return null;
      });
    } catch (error) {
      if (findSandbox(db, id)?.state !== "resuming") return;
      log.warn("the machine of a sandbox cannot be started again", { sandbox: id, error });
      lives.journal.change(id, failureOf(db, row), { reason: "machine", error: bodyOf(error) });
    }
  }

  /** Ends a sandbox now. @throws ApiError `conflict` */
  end({ id, accountId }: SandboxRow, reason: StateReason): void {
    const { db, lives, operations } = this.#options;
    const { state, operationId } = requireSandbox(db, accountId, id);
    lives.journal.change(id, "end", { reason });
    // Its variables may have been secrets.
    db.eraseSoon();
    if (operationId === null) this.#forgetStates(id);
    else if (state === "running") lives.end(operationId, "discard");
    else operations.cancel(accountId, operationId);
  }

  /** Continues a request when the instance has been captured. */
  #after(row: SandboxRow, operationId: OperationId, ending: StoredEnding | null): void {
    if (ending === null || ending.then === null) return;
    const { then } = ending;
    // Otherwise the sandbox has failed, with the reason.
    this.#next.set(operationId, (hasSucceeded) => void (hasSucceeded && this.#complete(row, then)));
  }

  /** Never throws. */
  async #complete(row: SandboxRow, then: StoredEnding["then"]): Promise<void> {
    const { db, log } = this.#options;
    const failed = (error: unknown) =>
      log.warn("a request for a sandbox cannot be completed", { sandbox: row.id, error });
    try {
      if (then?.request === "end") this.end(row, "request");
      if (then?.request === "rollback") this.moveHead(row, then.target);
    } catch (error) {
      failed(error);
      // It must not be tried again when the sandbox is used for something else.
      if (findSandbox(db, row.id) !== null) updateSandbox(db, row.id, { ending: null });
      return;
    }
    if (then?.request === "rollback") await this.resume(row, { reason: "request" }).catch(failed);
  }

  #onOperation(change: OperationChange): void {
    if (change.type !== "ended" && change.type !== "postponed") return;
    const { id: operationId } = change.operation;
    this.#options.memory.settle(operationId);
    const id = this.#sandboxOf.get(operationId);
    if (id === undefined) return;
    this.#sandboxOf.delete(operationId);
    const next = this.#next.get(operationId);
    this.#next.delete(operationId);
    // The service stops: the next start recovers the sandbox.
    if (change.type === "postponed") return;
    this.#options.lives.journal.catchUp(id);
    next?.(change.status === "SUCCESS");
    this.#forgetStates(id);
  }

  /** Forgets states; their number is small, because this follows every new one. */
  #forgetStates(id: SandboxId): void {
    const { db, keepStates, changes } = this.#options;
    const row = findSandbox(db, id);
    const discardsPauses = row?.state === "ended" && row.discardsPauses;
    const kept: KeptStates = discardsPauses ? "all but pauses" : { newestCount: keepStates };
    for (let hasMore = true; hasMore; ) {
      const forgotten = forgetStates(db, id, kept);
      ({ hasMore } = forgotten);
      for (const image of forgotten.removed) {
        changes.report(image.accountId, { type: "deleted", id: image.id });
        void releaseImage(this.#options, image, image.accountId);
      }
    }
  }
}

/** The instance of a sandbox that has one and is in that state. @throws ApiError `conflict` */
export function instanceOf({ state, operationId }: SandboxRow, expected: SandboxState = "running"): OperationId {
  if (state !== expected || operationId === null) throw sandboxConflict(state);
  return operationId;
}

/** The fields of a sandbox that each of its instances has. */
export function pickRun({ network, resources }: Pick<SandboxRun, "network" | "resources">) {
  return { network, resources };
}

/** An instance at the head of a sandbox. */
function runOf(row: SandboxRow): SandboxRun {
  const { id: sandboxId, name: hostname, headId: imageId } = row;
  if (imageId === null) throw sandboxConflict(row.state);
  return { sandboxId, hostname, imageId, files: [], ...pickRun(row) };
}

/** The instance whose memory a sandbox keeps. */
function continuationOf(row: SandboxRow, { id, imageId, memoryBytes }: MemoryImageRow): SandboxRun {
  const resources = { ...row.resources, memoryImageBytes: memoryBytes };
  return { ...runOf(row), imageId, resources, memoryImageId: id };
}

function bodyOf(error: unknown): ErrorBody {
  if (error instanceof ApiError) return error.body();
  return new ApiError("internal_error", "the sandbox could not be started").body();
}
