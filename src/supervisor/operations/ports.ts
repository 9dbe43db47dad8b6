import type { AccountId, OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import type { Readiness } from "../../domain/readiness.ts";
import type { Kind } from "./kind.ts";

/**
 * Outcome of a cancel request. `accepted`: the operation is CANCELLED, or will be soon; `terminal`: it had ended before.
 */
export type CancelOutcome = "accepted" | "terminal" | "not_found";

/** The interface of long-running work for use cases. The row of an operation exists before `submit` returns. */
export interface OperationsPort {
  /**
   * Queues an operation of the kind.
   * @param also changes further rows in the transaction that inserts the operation's; when it throws, nothing is queued
   * @throws ApiError `unavailable`, `too_many_requests`, `insufficient_storage`, or `not_found` when the image or a file
   *   was removed meanwhile; as the `reserve` of the kind's worker does
   */
  submit<Submission>(
    accountId: AccountId,
    kind: Pick<Kind<Submission, unknown, unknown, never>, "name" | "store">,
    submission: NoInfer<Submission>,
    also?: (id: OperationId) => void,
  ): Promise<{ readonly id: OperationId }>;
  /** Requests the end of a PENDING or EXECUTING operation. A second request is accepted, too. */
  cancel(accountId: AccountId, id: OperationId): CancelOutcome;
  /** Resolves when the operation has ended, `timeoutMs` passes, or `signal` fires; never throws. */
  waitForEnd(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void>;
  /**
   * Samples the running instance at once and then every second until it ends; null when it is not running.
   * The caller must have checked that the instance belongs to the account.
   */
  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null;
  readiness(): Readiness;
}
