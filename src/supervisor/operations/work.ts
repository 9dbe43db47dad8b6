import type { Publication, Published } from "../../db/publish.ts";
import type { RequestedResources } from "../../db/schema.ts";
import type { Laps } from "../../metrics.ts";
import type { EventLog } from "./event-logs.ts";
import type { OperationRef } from "./events.ts";
import type { Cost } from "./scheduler.ts";

export interface WorkContext {
  readonly signal: AbortSignal;
  /** records the duration of each step when it ends */
  readonly laps: Laps;
  /** takes what is to be seen of the work while it goes on, and later; it is ended before the operation is */
  readonly events: EventLog;
}

/** Finished work that is not published yet. Disposal removes the files that the work made, unless they were kept. */
export interface Prepared extends AsyncDisposable {
  readonly publication: Publication;
  /** Keeps the files that the published rows refer to. It is called right after the commit and must not throw. */
  keep(published: Published): void;
}

/** Does the work of one kind of operation. */
export interface Worker<Request> {
  /** The share of the host's budget that an operation holds while it runs; called before its request is read. */
  cost(resources: RequestedResources | null): Cost;
  /** Does everything except the publication, which the caller does. @throws the cause of the failure */
  prepare(operation: OperationRef, request: Request, context: WorkContext): Promise<Prepared>;
}

/**
 * Makes prepared work that owns the resources on `stack`.
 * @param keep marks the files of the publication, so that disposing of the stack leaves them in place
 */
export function prepared(stack: AsyncDisposableStack, publication: Publication, keep: Prepared["keep"]): Prepared {
  const owned = stack.move();
  return { publication, keep, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
