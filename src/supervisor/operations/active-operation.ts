import type { RequestedResources } from "../../db/schema.ts";
import type { NetworkAudit } from "../../domain/network.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { Survivor } from "../survivors/survey.ts";
import type { OperationRef } from "./changes.ts";
import type { Credentials } from "./kind.ts";
import { Laps } from "./laps.ts";
import type { Ticket } from "./scheduler.ts";

/** An operation that is queued or runs in this process. While it waits, its request is on disk only. */
export interface ActiveOperation extends OperationRef {
  readonly resources: RequestedResources | null;
  credentials: Credentials | null;
  /** place among the account's waiting operations; disposed when it starts, or ends without having started */
  readonly place: Disposable;
  /**
   * resources that the worker reserved at the submission, or again when a former process had accepted it; disposed when the
   * operation ends
   */
  reserved: Disposable | null;
  /** a share of the budget from before the submission; null: the operation waits for one */
  readonly ticket: Ticket | null;
  /** its machine, which a former process has left running; null: the work begins */
  readonly survivor: Survivor | null;
  readonly abort: AbortController;
  readonly laps: Laps;
  /** null before the start */
  log: (EventLog & Disposable) | null;
  /** returns the audit of the instance's network; null without a network */
  networkAudit: (() => NetworkAudit | null) | null;
  started: boolean;
  /** true: its command has not begun, and it is to begin again */
  isRequeued: boolean;
  /** the row is terminal; resources of the work may still have to be disposed of */
  ended: boolean;
}

/** An operation that has not started. */
export function activeOperation(
  operation: OperationRef,
  more: Pick<ActiveOperation, "resources" | "credentials" | "place" | "reserved" | "ticket"> &
    Partial<Pick<ActiveOperation, "survivor">>,
): ActiveOperation {
  return {
    ...operation,
    survivor: null,
    ...more,
    abort: new AbortController(),
    laps: new Laps(),
    log: null,
    networkAudit: null,
    started: false,
    isRequeued: false,
    ended: false,
  };
}

export function refOf({ id, accountId, kind }: ActiveOperation): OperationRef {
  return { id, accountId, kind };
}
