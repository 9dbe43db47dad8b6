import { setTag } from "../../db/images/tags.ts";
import { getOperation } from "../../db/operations.ts";
import {
  countLiveSandboxes,
  failureOf,
  findSandbox,
  insertSandbox,
  latestChanged,
  noMachineOf,
  requireFreeName,
  requireSandbox,
  type SandboxRow,
  sandboxesIn,
  updateSandbox,
} from "../../db/sandboxes/rows.ts";
import { targetOf } from "../../db/sandboxes/states.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import { ApiError, type ErrorBody } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import type { AccountId, ImageId, OperationId, SandboxId } from "../../domain/ids.ts";
import type { NetworkRequest } from "../../domain/network.ts";
import {
  type SandboxPatch,
  type SandboxSample,
  type SandboxState,
  type SandboxSubmission,
  sandboxConflict,
} from "../../domain/sandbox.ts";
import { NotRunningError } from "../instance/refusals.ts";
import type { RunningInstances } from "../instance/running-instances.ts";
import { checkpointKind } from "../kinds/checkpoint.ts";
import type { MemoryFork } from "../kinds/instance-forks.ts";
import type { MemoryImages } from "../memory/memory-images.ts";
import type { Operations } from "../operations/operations.ts";
import { NOTHING_LEFT, type Recovery } from "../operations/options.ts";
import type { Scheduler } from "../operations/scheduler.ts";
import { Deadlines } from "./deadlines.ts";
import { FirstProcesses } from "./first-processes.ts";
import { fork, presentImage } from "./fork.ts";
import { forkWithMemory, type MemoryForkTools } from "./memory-fork.ts";
import { MemoryPauses } from "./memory-pauses.ts";
import type {
  SandboxCheckpoint,
  SandboxCreation,
  SandboxDeadline,
  SandboxEnd,
  SandboxesPort,
  SandboxFork,
  SandboxMemoryFork,
  SandboxPause,
  SandboxResumption,
  SandboxRollback,
  SandboxUse,
} from "./ports.ts";
import { Samples } from "./samples.ts";
import { instanceOf, pickRun, Transitions, type TransitionsOptions } from "./transitions.ts";

/** A wait without a limit of its own, in `milliseconds`. */
const FOREVER_MS = 2_147_483_647;
const SECOND_MS = 1000;
/** A change is in the log after this time, in `milliseconds`, also after a power failure. */
const LOGGED_MS_MAX = 60_000;

export interface SandboxesOptions
  extends TransitionsOptions,
    Omit<MemoryForkTools, "sandboxes" | "transitions" | "scheduler"> {
  readonly accounts: Accounts;
  readonly operations: Pick<Operations, "submit" | "begin" | "cancel" | "waitForEnd" | "changes">;
  readonly instances: RunningInstances;
  readonly scheduler: Pick<Scheduler, "fitsEver" | "admitNow">;
  readonly memory: Pick<MemoryImages, "keep" | "check" | "settle" | "sweep">;
}

/** Sandboxes: every change of their states on request, at deadlines, and when their instances end. */
export class Sandboxes implements SandboxesPort, Disposable {
  readonly #options: SandboxesOptions;
  readonly #deadlines: Deadlines;
  readonly #transitions: Transitions;
  readonly #pauses: MemoryPauses;
  readonly #first: FirstProcesses;
  readonly #samples: Samples;

  constructor(options: SandboxesOptions) {
    this.#options = options;
    const { journal } = options.lives;
    this.#first = new FirstProcesses(options);
    this.#transitions = new Transitions(options);
    this.#pauses = new MemoryPauses({ ...options, transitions: this.#transitions });
    this.#deadlines = new Deadlines({
      ...options,
      journal,
      pause: (row, reason) => this.#pauses.automatic(row, reason),
      end: (row) => this.#transitions.end(row, "deadline"),
    });
    this.#samples = new Samples({ ...options, journal });
    journal.listen((change) => this.#first.onChange(change));
  }

  /**
   * Continues the sandboxes whose machines run on, fails the others whose machines a former process had, and completes their
   * logs. To be called before operations are recovered.
   */
  recover({ survivors, problems }: Pick<Recovery, "survivors" | "problems"> = NOTHING_LEFT): void {
    const { db, lives } = this.#options;
    for (const row of latestChanged(db, LOGGED_MS_MAX)) lives.journal.complete(row);
    for (const row of sandboxesIn(db, ["starting", "running", "pausing", "resuming"])) {
      const { id, operationId } = row;
      if (operationId !== null && survivors.has(operationId)) {
        this.#transitions.continue(row, operationId);
        continue;
      }
      const problem = operationId === null ? undefined : problems.get(operationId);
      lives.journal.change(id, failureOf(db, row), { reason: "restart", error: restarted(problem) });
    }
    this.#transitions.completeAll();
  }

  async create(
    accountId: AccountId,
    submission: SandboxSubmission,
    { id = Bun.randomUUIDv7() as SandboxId, inserted, parentId }: SandboxCreation = {},
  ): Promise<SandboxRow> {
    const { db, clock } = this.#options;
    const { imageId, files, timeoutSeconds, idleTimeoutSeconds, start, ...settings } = submission;
    if (start !== null) this.#first.add(id, start);
    const timeoutMs = timeoutSeconds * SECOND_MS;
    const idleTimeoutMs = idleTimeoutSeconds === null ? null : idleTimeoutSeconds * SECOND_MS;
    const run = { sandboxId: id, hostname: submission.name, imageId, files, ...pickRun(submission) };
    try {
      const row = await this.#transitions.start({ id, accountId }, run, (operationId) => {
        this.requireRoom(accountId, 1);
        const now = clock();
        const fields = {
          ...settings,
          id,
          accountId,
          imageId,
          operationId,
          timeoutMs,
          idleTimeoutMs,
          ...given({ parentId }),
        };
        const row = insertSandbox(db, { ...fields, endsAt: now + timeoutMs }, now);
        inserted?.(row);
        return { row, from: null, reason: "request" };
      });
      await this.logged(id);
      return row;
    } catch (error) {
      this.#first.forget(id);
      throw error;
    }
  }

  /** @throws ApiError `too_many_requests` when the account cannot have `count` more sandboxes */
  requireRoom(accountId: AccountId, count: number): void {
    const { db, accounts } = this.#options;
    const { max, refusal } = accounts.limits.sandboxes;
    const used = countLiveSandboxes(db, accountId);
    if (used + count > max) throw new ApiError("too_many_requests", refusal({ max, used }), { limit: max });
  }

  async pause(accountId: AccountId, id: SandboxId, { memory = false }: SandboxPause = {}): Promise<OperationId> {
    const row = this.#require(accountId, id);
    const ending = { reason: "pause", tag: null } as const;
    const operationId = memory
      ? await this.#onMachine(id, () => this.#pauses.withMemory(row, "request"))
      : this.#transitions.capture(row, "request", ending);
    await this.logged(id);
    return operationId;
  }

  async resume(
    accountId: AccountId,
    id: SandboxId,
    { timeoutSeconds, reason = "request", memory }: SandboxResumption = {},
  ): Promise<void> {
    const row = this.#require(accountId, id);
    const lifeMs = timeoutSeconds === undefined ? undefined : timeoutSeconds * SECOND_MS;
    await this.#transitions.resume(row, { reason, lifeMs, memory });
    await this.logged(id);
  }

  setDeadline(accountId: AccountId, id: SandboxId, { seconds, onlyLater }: SandboxDeadline): SandboxRow {
    const { db, clock } = this.#options;
    const endsAt = clock() + seconds * SECOND_MS;
    const row = db.transaction(() => {
      const before = this.#require(accountId, id);
      if (before.endsAt === null) throw sandboxConflict(before.state);
      return onlyLater && endsAt <= before.endsAt ? before : updateSandbox(db, id, { endsAt });
    });
    this.#deadlines.wake();
    return row;
  }

  async rollback(accountId: AccountId, id: SandboxId, { target, keep, tag }: SandboxRollback): Promise<void> {
    const { db } = this.#options;
    const row = this.#require(accountId, id);
    const to = targetOf(db, row, target);
    if (row.state !== "running") {
      if (keep && tag !== undefined) this.#tagHead(row, tag);
      this.#transitions.moveHead(row, to);
    } else if (keep) {
      const ending = { reason: "keep", tag: tag ?? null } as const;
      this.#transitions.capture(row, "request", ending, { request: "rollback", target: to });
    } else this.#transitions.restart(row, to);
    await this.logged(id);
  }

  async checkpoint(
    accountId: AccountId,
    id: SandboxId,
    { tag, timeoutSeconds }: SandboxCheckpoint,
  ): Promise<OperationId> {
    const { db, operations } = this.#options;
    const row = this.#require(accountId, id);
    const instanceId = instanceOf(row);
    const imageId = getOperation(db, accountId, instanceId)?.imageId ?? null;
    if (imageId === null) throw sandboxConflict(row.state);
    const submission = { instanceId, imageId, tag, timeoutSeconds, sandboxId: id };
    return await this.#onMachine(id, async () => {
      const operation = await operations.submit(accountId, checkpointKind, submission, (operationId) => {
        this.#transitions.follow(operationId, id);
      });
      return operation.id;
    });
  }

  async fork(
    accountId: AccountId,
    id: SandboxId,
    request: SandboxFork,
    signal: AbortSignal,
  ): Promise<readonly SandboxId[]> {
    return await fork({ ...this.#options, sandboxes: this }, this.#require(accountId, id), request, signal);
  }

  async forkMemory(
    accountId: AccountId,
    id: SandboxId,
    request: SandboxMemoryFork,
    signal: AbortSignal,
  ): Promise<MemoryFork<SandboxId>> {
    const tools = { ...this.#options, sandboxes: this, transitions: this.#transitions };
    const row = this.#require(accountId, id);
    const forked = await this.#onMachine(id, () => forkWithMemory(tools, row, request, signal));
    for (const forkId of forked.ids) await this.logged(forkId);
    return forked;
  }

  async presentImage(accountId: AccountId, id: SandboxId, signal: AbortSignal): Promise<ImageId> {
    return await presentImage({ ...this.#options, sandboxes: this }, this.#require(accountId, id), signal);
  }

  async end(accountId: AccountId, id: SandboxId, { keep, tag }: SandboxEnd): Promise<void> {
    const row = this.#require(accountId, id);
    // Its end would give up the files that another request saves.
    if (keep && row.state === "pausing") throw sandboxConflict(row.state);
    if (keep && row.state === "running") {
      const ending = { reason: "keep", tag: tag ?? null } as const;
      this.#transitions.capture(row, "request", ending, { request: "end" });
    } else {
      if (keep && tag !== undefined) this.#tagHead(row, tag);
      this.#transitions.end(row, "request");
    }
    await this.logged(id);
  }

  async change(accountId: AccountId, id: SandboxId, patch: SandboxPatch): Promise<SandboxRow> {
    const { db, clock } = this.#options;
    const { network, name } = patch;
    const present = this.#require(accountId, id);
    if (present.state === "ended") throw sandboxConflict(present.state);
    if (name !== undefined && name !== present.name) requireFreeName(db, accountId, name);
    if (network !== undefined) await this.#setNetwork(present, network);
    const row = db.transaction(() => {
      const before = this.#require(accountId, id);
      const { timeoutSeconds, idleTimeoutSeconds: idle, ...rest } = patch;
      if (before.state === "ended") throw sandboxConflict(before.state);
      if (name !== undefined && name !== before.name) requireFreeName(db, accountId, name);
      const timeoutMs = timeoutSeconds === undefined ? undefined : timeoutSeconds * SECOND_MS;
      const endsAt = timeoutMs === undefined || before.endsAt === null ? undefined : clock() + timeoutMs;
      const idleTimeoutMs = idle == null ? idle : idle * SECOND_MS;
      const values = Object.entries({ ...rest, timeoutMs, endsAt, idleTimeoutMs });
      return updateSandbox(db, id, Object.fromEntries(values.filter(([, value]) => value !== undefined)));
    });
    this.#deadlines.wake();
    return row;
  }

  /** Sets the network of a sandbox and of its instance, or of neither. @throws as `RunningInstances.setNetwork` */
  async #setNetwork({ id, operationId, network: before }: SandboxRow, network: NetworkRequest | null): Promise<void> {
    const { db, instances } = this.#options;
    // An instance that begins from now on reads it.
    updateSandbox(db, id, { network });
    if (operationId === null) return;
    try {
      await instances.setNetwork(operationId, network);
    } catch (error) {
      const now = findSandbox(db, id)?.network ?? null;
      if (Bun.deepEquals(now, network)) updateSandbox(db, id, { network: before });
      throw error;
    }
  }

  async use(
    accountId: AccountId,
    id: SandboxId,
    signal: AbortSignal,
    { resumes = true }: { readonly resumes?: boolean } = {},
  ): Promise<SandboxUse> {
    for (let hasWaited = false; ; hasWaited = true) {
      signal.throwIfAborted();
      const row = this.#require(accountId, id);
      const { state, autoResume, operationId: instance, error } = row;
      if (state === "running" && instance !== null) {
        const use = this.#deadlines.use(id);
        return { instance, [Symbol.dispose]: () => use[Symbol.dispose]() };
      }
      const isBeginning = state === "starting" || state === "resuming";
      if (!autoResume || !(isBeginning || (state === "paused" && resumes))) throw sandboxConflict(state);
      // The next request tries again.
      if (hasWaited && error !== null) throw new ApiError(error.error, error.message, error.details);
      if (state === "paused") await unlessConflict(this.#transitions.resume(row, { reason: "auto_resume" }));
      await this.settled(id, (now) => now !== "starting" && now !== "resuming", FOREVER_MS, signal);
    }
  }

  async settled(
    id: SandboxId,
    until: (state: SandboxState) => boolean,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    await this.#options.lives.journal.settled(id, until, timeoutMs, signal);
    await this.logged(id);
  }

  samples(id: SandboxId): readonly SandboxSample[] {
    return this.#samples.of(id);
  }

  logged(id: SandboxId): Promise<void> | null {
    return this.#options.lives.journal.logs.written(id);
  }

  /** Ends the deadlines and the samples. The ends of instances are still reported, as long as operations end. */
  [Symbol.dispose](): void {
    this.#deadlines[Symbol.dispose]();
    this.#samples[Symbol.dispose]();
  }

  /** Does `work` with the machine of a running sandbox. @throws as `work` does; ApiError `unavailable` when it has just died */
  async #onMachine<T>(id: SandboxId, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof NotRunningError)) throw error;
      throw noMachineOf(this.#options.db, id);
    }
  }

  #require(accountId: AccountId, id: SandboxId): SandboxRow {
    return requireSandbox(this.#options.db, accountId, id);
  }

  #tagHead({ accountId, headId }: SandboxRow, name: string): void {
    const { db, clock } = this.#options;
    if (headId !== null) setTag(db, accountId, headId, { name, change: "added", now: clock() });
  }
}

/** @param problem why its machine cannot be continued; absent: it had none */
function restarted(problem: string | undefined): ErrorBody {
  const message = "the appliance was restarted while the sandbox was running";
  const why = problem === undefined ? message : `${message}, and could not continue it: ${problem}`;
  return new ApiError("unavailable", why).body();
}

/** Another request was faster: the state says what it did. */
async function unlessConflict(work: Promise<void>): Promise<void> {
  try {
    await work;
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
  }
}
