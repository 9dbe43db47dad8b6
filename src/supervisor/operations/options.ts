import type { Database } from "../../db/database.ts";
import type { ForkOrigin } from "../../db/operations.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import type { Readiness } from "../../domain/readiness.ts";
import type { Log } from "../../log.ts";
import type { EventLogs } from "../../storage/events/event-logs.ts";
import type { Survey } from "../survivors/survey.ts";
import type { countChanges } from "./changes.ts";
import type { KindAtWork } from "./kind.ts";
import type { Requests } from "./requests.ts";
import type { Scheduler, Ticket } from "./scheduler.ts";

/** An operation that begins with a machine of its own, a fork. */
export interface ForkSubmission<Submission> {
  readonly id: OperationId;
  readonly submission: Submission;
  readonly fork: ForkOrigin;
  /** its share of the budget, which is the operation's once it is inserted */
  readonly ticket: Ticket;
  /** changes further rows in the transaction that inserts the operations */
  readonly also?: (id: OperationId) => void;
}

/** The operations of a former process. */
export type Recovery = Pick<Survey, "survivors" | "problems" | "unbegun">;
export const NOTHING_LEFT: Recovery = { survivors: new Map(), problems: new Map(), unbegun: new Set() };

/**
 * How a running operation is affected by a stop of this process. ends: it fails. completes: it ends by itself within a moment, and the
 * stop waits. continues: its machine runs on. begins_again: its command has not begun, so the next process starts it.
 */
export type AtStop = "ends" | "completes" | "continues" | "begins_again";

export interface OperationsOptions {
  readonly db: Database;
  readonly requests: Requests;
  readonly log: Log;
  readonly clock: () => number;
  readonly metrics: Parameters<typeof countChanges>[1];
  readonly scheduler: Scheduler;
  /** the table of kinds */
  readonly kinds: readonly KindAtWork[];
  readonly eventLogs: EventLogs;
  /** Samples a running operation until `signal` fires; null when there is nothing to sample. */
  readonly samplesOf: (id: OperationId, signal: AbortSignal) => AsyncIterable<InstanceStats> | null;
  /** @throws ApiError `insufficient_storage` when the disk has too little free space for more work */
  readonly requireSpace: () => void;
  /** Resolves when no work is being ended to free disk space. */
  readonly spaceSettled: (signal: AbortSignal) => Promise<void>;
  readonly readiness: () => Readiness;
  /** Resolves when work may begin, because machines can run. @throws ApiError when they cannot */
  readonly machinesReady: (signal: AbortSignal) => Promise<void>;
  readonly accounts: Accounts;
}
