import type { Publication, Published } from "../../db/publish.ts";
import type { RequestedResources } from "../../db/schema.ts";
import type { Laps } from "../../metrics.ts";
import type { OperationRef } from "./events.ts";
import type { Cost } from "./scheduler.ts";

export interface WorkContext {
  readonly signal: AbortSignal;
  /** takes the time of each step as it ends */
  readonly laps: Laps;
}

/** Work that is done but for its publication. Disposal removes everything that the work made and that was not kept. */
export interface Prepared extends AsyncDisposable {
  readonly publication: Publication;
  /** Keeps the files that rows refer to now. It is called as soon as the publication is committed, and must not fail. */
  keep(published: Published): void;
}

/** How the operations of one kind are done. */
export interface Worker<Request> {
  /** What an operation holds of the host while it is done; asked for before its request is read. */
  cost(resources: RequestedResources | null): Cost;
  /** Does everything but the publication, which is left to the caller; throws what made it fail. */
  prepare(operation: OperationRef, request: Request, context: WorkContext): Promise<Prepared>;
}

/**
 * Prepared work that owns what is on `stack`.
 * @param keep makes the disposal of what is on the stack leave the files of the publication
 */
export function prepared(stack: AsyncDisposableStack, publication: Publication, keep: Prepared["keep"]): Prepared {
  const owned = stack.move();
  return { publication, keep, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
