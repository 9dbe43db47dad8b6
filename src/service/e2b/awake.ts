import { findSandbox, requireSandbox, type SandboxRow } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, SandboxId } from "../../domain/ids.ts";
import { type SandboxState, type StateReason, sandboxConflict } from "../../domain/sandbox.ts";
import type { SandboxResumption } from "../../supervisor/sandboxes/ports.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { runs } from "./readiness.ts";
import type { WaitingClients } from "./waiting-clients.ts";

/** Longest wait for a capture, in `milliseconds`: it is done then, or it has failed. */
const CAPTURE_MS_MAX = 600_000;
/** Other requests for the sandbox that one request may meet. */
const ATTEMPTS_MAX = 10;

export interface AwakeParts extends ServiceParts {
  readonly clients: WaitingClients;
}

export interface Awakening {
  /** life of a sandbox from its resume; null: one that is paused, or about to be, is refused */
  readonly resumeSeconds: number | null;
  readonly reason: Extract<StateReason, "request" | "auto_resume">;
  /** false: kept memory is given up; absent: its processes continue when they can */
  readonly memory?: false | undefined;
  /** the client has left: a start of which no client learns is given up */
  readonly signal: AbortSignal;
}

export interface Awake {
  readonly sandbox: SandboxRow;
  /** whether this request has resumed it */
  readonly isResumed: boolean;
  /** whether it ran already */
  readonly hasRun: boolean;
}

/**
 * A sandbox once it runs: one that starts is awaited, and a paused one resumed. One that cannot resume stays paused.
 * @throws ApiError `conflict` when it does not run, and should not; as `runs`, and as `SandboxesPort.resume`
 */
export async function awake(
  parts: AwakeParts,
  principal: Pick<Principal, "accountId">,
  id: SandboxId,
  { resumeSeconds, reason, memory, signal }: Awakening,
): Promise<Awake> {
  const { db, sandboxes } = parts;
  const { accountId } = principal;
  for (let attempt = 1; ; attempt++) {
    const sandbox = requireSandbox(db, accountId, id);
    const { state } = sandbox;
    if (state === "running") return { sandbox, isResumed: false, hasRun: attempt === 1 };
    try {
      if (state === "pausing" && resumeSeconds !== null) {
        await sandboxes.settled(id, (now) => now !== "pausing", CAPTURE_MS_MAX, signal);
        signal.throwIfAborted();
      } else if (state === "paused" && resumeSeconds !== null) {
        parts.clients.begin(id);
        const resume = () =>
          withMemoryOrFiles(sandboxes, { accountId, id, timeoutSeconds: resumeSeconds, reason, memory });
        const resumed = await started(parts, principal, { id, isAdded: true, signal, resume });
        return { sandbox: resumed, isResumed: true, hasRun: false };
      } else if (state === "starting" || state === "resuming") {
        await started(parts, principal, { id, isAdded: state === "resuming" && parts.clients.join(id), signal });
      } else throw sandboxConflict(state);
    } catch (error) {
      // Another request was faster; the state says what it did.
      const isOther = error instanceof ApiError && error.code === "conflict" && stateOf(parts, id) !== state;
      if (!isOther || attempt === ATTEMPTS_MAX) throw error;
    }
  }
}

interface Wish extends Pick<SandboxResumption, "timeoutSeconds" | "reason" | "memory"> {
  readonly accountId: AccountId;
  readonly id: SandboxId;
}

/** Clients of this dialect want the sandbox to run: from its files when its memory cannot be continued. */
async function withMemoryOrFiles(
  sandboxes: AwakeParts["sandboxes"],
  { accountId, id, memory, ...wish }: Wish,
): Promise<void> {
  try {
    await sandboxes.resume(accountId, id, { ...wish, memory });
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "not_resumable" || memory === false) throw error;
    await sandboxes.resume(accountId, id, { ...wish, memory: false });
  }
}

interface Start {
  readonly id: SandboxId;
  /** whether the client is one of those that wait */
  readonly isAdded: boolean;
  readonly signal: AbortSignal;
  readonly resume?: () => Promise<void>;
}

/** Waits for a start. The last client that leaves gives up a resume that such a client has begun. */
async function started(
  parts: AwakeParts,
  principal: Pick<Principal, "accountId">,
  { id, isAdded, signal, resume }: Start,
): Promise<SandboxRow> {
  try {
    await resume?.();
    const row = await runs(parts, principal, id, signal);
    if (isAdded) parts.clients.answer(id);
    return row;
  } catch (error) {
    if (isAdded && parts.clients.leave(id)) giveUp(parts, id);
    throw error;
  }
}

/** Ends a resume: the sandbox is paused again. */
function giveUp({ db, operations }: ServiceParts, id: SandboxId): void {
  const row = findSandbox(db, id);
  if (row?.state === "resuming" && row.operationId !== null) operations.cancel(row.accountId, row.operationId);
}

function stateOf({ db }: ServiceParts, id: SandboxId): SandboxState | undefined {
  return findSandbox(db, id)?.state;
}
