import type { SandboxRow } from "../../db/sandboxes/rows.ts";
import type { AccountId, ImageId, OperationId, SandboxId } from "../../domain/ids.ts";
import type {
  SandboxPatch,
  SandboxSample,
  SandboxState,
  SandboxSubmission,
  StateReason,
} from "../../domain/sandbox.ts";
import type { MemoryFork } from "../kinds/instance-forks.ts";

/** Where a rollback goes: an image of the account, or `HEAD~head`. */
export type RollbackTarget = { readonly image: ImageId } | { readonly head: number };

export interface SandboxRollback {
  readonly target: RollbackTarget;
  /** true: what a running sandbox gives up is saved first */
  readonly keep: boolean;
  /** the tag to move to the image of what is saved */
  readonly tag?: string | undefined;
}

export interface SandboxEnd {
  /** true: the files of a running sandbox are saved first */
  readonly keep: boolean;
  /** the tag to move to that image */
  readonly tag?: string | undefined;
}

export interface SandboxPause {
  /** true: its memory is kept, so that its processes can continue; default: false */
  readonly memory?: boolean | undefined;
}

export interface SandboxResumption {
  /** its life from now; absent: the one of its settings */
  readonly timeoutSeconds?: number | undefined;
  /** default: a request */
  readonly reason?: Extract<StateReason, "request" | "auto_resume"> | undefined;
  /** true: with its memory, or not at all; false: from its files; absent: with its memory when that is kept */
  readonly memory?: boolean | undefined;
}

export interface SandboxFork {
  readonly count: number;
  /** as many as `count`; absent: numbered by the name of the sandbox */
  readonly names?: readonly string[] | undefined;
}

/** A fork with memory. */
export interface SandboxMemoryFork extends SandboxFork {
  /** for the processes of each fork, which tells them of it; null: none */
  readonly signal: number | null;
}

export interface SandboxCheckpoint {
  readonly tag: string | null;
  readonly timeoutSeconds: number;
}

/** More about a new sandbox. */
export interface SandboxCreation {
  /** absent: one is made */
  readonly id?: SandboxId | undefined;
  /** called in the transaction that inserts it; what it throws undoes the creation */
  readonly inserted?: ((row: SandboxRow) => void) | undefined;
  /** the sandbox whose files it gets; absent: none */
  readonly parentId?: SandboxId | undefined;
}

export interface SandboxDeadline {
  /** from now, at least 0 */
  readonly seconds: number;
  /** true: an earlier deadline than the present one changes nothing */
  readonly onlyLater: boolean;
}

/** The use of a sandbox: until disposal, the sandbox is not idle. */
export interface SandboxUse extends Disposable {
  /** the operation of the instance that lives now */
  readonly instance: OperationId;
}

/**
 * Sandboxes for use cases, which check ownership of the sandbox, and resolve images. Every method throws ApiError
 * `not_found` when the account has no such sandbox, and `conflict` with `details.state` when its state does not allow the
 * request, or another request was faster.
 */
export interface SandboxesPort {
  /**
   * Makes a sandbox, which is `starting`.
   * @throws ApiError `conflict` for a name that is in use; `too_many_requests` when the account has too many sandboxes; as
   *   `OperationsPort.submit` does
   */
  create(accountId: AccountId, submission: SandboxSubmission, creation?: SandboxCreation): Promise<SandboxRow>;
  /**
   * Begins to capture a running sandbox: it is `pausing` then. Returns the operation that makes the image.
   * @throws with `memory`, as `MemoryImages.keep` does; the sandbox continues then
   */
  pause(accountId: AccountId, id: SandboxId, request?: SandboxPause): Promise<OperationId>;
  /**
   * Begins to start a paused or failed sandbox at its head, or to continue its processes: it is `resuming` then.
   * @throws ApiError `not_resumable`; as `OperationsPort.submit` does
   */
  resume(accountId: AccountId, id: SandboxId, request?: SandboxResumption): Promise<void>;
  /** Moves the deadline of a sandbox that has one. */
  setDeadline(accountId: AccountId, id: SandboxId, deadline: SandboxDeadline): SandboxRow;
  /**
   * Moves the head. A running sandbox is `resuming` then, or `pausing` when it saves what it gives up; one without a machine
   * stays without.
   * @throws ApiError `not_found` when there is no such state
   */
  rollback(accountId: AccountId, id: SandboxId, request: SandboxRollback): Promise<void>;
  /**
   * Queues a checkpoint of a running sandbox, which moves its head, also when its machine dies meanwhile, unless the sandbox
   * was paused, rolled back or resumed by then.
   * Returns the operation.
   */
  checkpoint(accountId: AccountId, id: SandboxId, request: SandboxCheckpoint): Promise<OperationId>;
  /**
   * Makes sandboxes from the present files, all or none. It makes a checkpoint of a running sandbox first.
   * @param signal abandons the wait for the checkpoint
   * @throws as `create` and `checkpoint` do
   */
  fork(accountId: AccountId, id: SandboxId, request: SandboxFork, signal: AbortSignal): Promise<readonly SandboxId[]>;
  /**
   * Copies a running sandbox with its memory, all copies or none: their processes continue where those of the sandbox are. The
   * sandbox stands still for a moment.
   * @param signal abandons the fork before any copy begins
   * @throws as `create` does; `conflict` when another copy of it is being made, or its guest is busy; `unavailable` when the
   *   budget has no room now
   */
  forkMemory(
    accountId: AccountId,
    id: SandboxId,
    request: SandboxMemoryFork,
    signal: AbortSignal,
  ): Promise<MemoryFork<SandboxId>>;
  /**
   * An image of the present files: a checkpoint of a running sandbox, which moves its head, and otherwise its head.
   * @param signal abandons the wait for the checkpoint
   * @throws as `checkpoint` does, and as it fails; the reason of `signal`
   */
  presentImage(accountId: AccountId, id: SandboxId, signal: AbortSignal): Promise<ImageId>;
  /** Ends a sandbox: it is `ended` then, or `pausing` when a running one saves its files first. */
  end(accountId: AccountId, id: SandboxId, request: SandboxEnd): Promise<void>;
  /**
   * Changes settings. Resolves when a running guest has adopted its network.
   * @throws ApiError `conflict` for a name that is in use; as `RunningInstances.setNetwork` does, and then nothing has changed
   */
  change(accountId: AccountId, id: SandboxId, patch: SandboxPatch): Promise<SandboxRow>;
  /** Samples of the usage in the present life, in the order of time; none when the sandbox does not run. */
  samples(id: SandboxId): readonly SandboxSample[];
  /**
   * The instance that lives now. One that starts or resumes is awaited; a paused one with `autoResume` is resumed first.
   * @param options `resumes` false: a paused one is refused
   * @throws the reason of `signal`; as `resume` does
   */
  use(
    accountId: AccountId,
    id: SandboxId,
    signal: AbortSignal,
    options?: { readonly resumes?: boolean },
  ): Promise<SandboxUse>;
  /**
   * Resolves when readers can read all changes so far in the log of the sandbox, also after a crash; null: they can. Requests
   * are answered after that.
   */
  logged(id: SandboxId): Promise<void> | null;
  /** Resolves when `until` holds of the state, and the log has it, `timeoutMs` passes, or `signal` fires; never throws. */
  settled(
    id: SandboxId,
    until: (state: SandboxState) => boolean,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<void>;
}
