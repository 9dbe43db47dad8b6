import type { Publication, Published } from "../../db/publish.ts";
import type { RequestedResources } from "../../db/schema.ts";
import { ApiError } from "../../domain/errors.ts";
import type { NetworkAudit } from "../../domain/network.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { LeftInstance } from "../survivors/survey.ts";
import type { OperationRef } from "./changes.ts";
import type { Laps } from "./laps.ts";
import type { Cost } from "./scheduler.ts";

export interface WorkContext {
  readonly signal: AbortSignal;
  /** records the duration of each step when it ends */
  readonly laps: Laps;
  /** the event log of the operation; the caller ends it before the operation ends */
  readonly events: EventLog;
  /**
   * Sets the source of the audit of the instance's network. It is read once, when the operation ends for any reason. A
   * later call replaces the source.
   */
  readonly auditNetwork: (audit: () => NetworkAudit | null) => void;
  /** Gives back what exceeds `cost` of the share that the operation holds. */
  readonly reduceCost: (cost: Cost) => void;
  /** the instance of the operation that a former process has left running; absent: the work begins */
  readonly left?: LeftInstance | undefined;
}

/** Finished work that is not published yet. Disposal removes the files that the work made, unless `keep` was called. */
export interface Prepared extends AsyncDisposable {
  readonly publication: Publication;
  /** Makes disposal leave the files that the published rows refer to. Called right after the commit; must not throw. */
  keep(published: Published): void;
}

/** Does the work of one kind of operation. */
export interface Worker<Submission, Request> {
  /**
   * The share of the host's budget that an operation holds while it runs; called before its request is read. Null: the
   * operation holds no share and starts at once.
   */
  cost(resources: RequestedResources | null): Cost | null;
  /** Reserves resources for an operation from its submission to its end, until disposal. @throws ApiError when it cannot */
  reserve?(submission: Submission | Request): Disposable | null;
  /** Does everything except the publication, which the caller does. @throws the cause of the failure */
  prepare(operation: OperationRef, request: Request, context: WorkContext): Promise<Prepared>;
}

/** The time limit that the request of an operation sets. */
export interface WorkLimit {
  /** name of the work in the error, such as `import` */
  readonly name: string;
  readonly seconds: number;
  /** ends the work for other reasons */
  readonly signal: AbortSignal;
}

/** Does work within a time limit. @throws ApiError `unavailable` when the limit passes; otherwise as `work` does */
export async function withinLimit<T>(
  { name, seconds, signal }: WorkLimit,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const late = AbortSignal.timeout(seconds * 1000);
  try {
    return await work(AbortSignal.any([signal, late]));
  } catch (error) {
    if (!late.aborted || signal.aborted) throw error;
    throw new ApiError("unavailable", `${name} timed out after ${seconds} s`, {}, { cause: error });
  }
}

/**
 * Makes prepared work that owns the resources on `stack`.
 * @param keep marks the files of the publication, so that disposing of the stack leaves them in place
 */
export function prepared(stack: AsyncDisposableStack, publication: Publication, keep: Prepared["keep"]): Prepared {
  const owned = stack.move();
  return { publication, keep, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
