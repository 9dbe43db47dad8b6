import { updateRecord } from "../../db/e2b/records.ts";
import { requireSandbox } from "../../db/sandboxes/rows.ts";
import type { SandboxId } from "../../domain/ids.ts";
import { type Changed, change } from "../change.ts";
import type { Principal } from "../parts.ts";
import { checkSettings } from "../sandboxes/checks.ts";
import { type AwakeParts, awake } from "./awake.ts";
import { becomeReady } from "./readiness.ts";
import { type Recorded, recordOf } from "./records.ts";

export interface ConnectRequest {
  /** life of the sandbox from the answer */
  readonly timeoutSeconds: number;
  /** false: kept memory is given up; absent: the processes of a paused one continue when they can */
  readonly memory?: false | undefined;
  readonly signal: AbortSignal;
}

export interface Connected extends Recorded {
  /** whether the request has resumed it */
  readonly isResumed: boolean;
}

/** As `E2bUseCases.connect`. */
export async function connect(
  parts: AwakeParts,
  principal: Principal,
  id: SandboxId,
  { timeoutSeconds: seconds, memory, signal }: ConnectRequest,
): Promise<Changed<Connected>> {
  const { db, sandboxes, limits } = parts;
  const { accountId } = principal;
  checkSettings(principal, { timeoutSeconds: seconds }, limits);
  return await change(parts, principal, { noun: "record", verb: "connect", id }, async () => {
    const { isResumed, hasRun } = await awake(parts, principal, id, {
      resumeSeconds: seconds,
      reason: "request",
      memory,
      signal,
    });
    const record = recordOf(db, requireSandbox(db, accountId, id));
    if (!hasRun) await becomeReady(parts, principal, record, signal);
    // A client counts from the answer.
    sandboxes.setDeadline(accountId, id, { seconds, onlyLater: !isResumed });
    if (isResumed) updateRecord(db, id, { pausedFilesOnly: !record.autoPauseMemory });
    const sandbox = requireSandbox(db, accountId, id);
    return { sandbox, record: recordOf(db, sandbox), isResumed };
  });
}
