import type { Publication } from "../../db/publish.ts";
import type { Laps } from "../../metrics.ts";
import type { Machine } from "../../vm/vmm.ts";
import type { Cost } from "../scheduler.ts";

export interface WorkContext {
  readonly signal: AbortSignal;
  /** takes the time of each step as it ends */
  readonly laps: Laps;
  onMachine(machine: Machine): void;
}

/** Work that is done but for its publication. Disposal removes everything that the work made and that was not kept. */
export interface Prepared extends AsyncDisposable {
  readonly publication: Publication;
  /** Keeps the files that rows refer to now; called in the turn in which the publication was committed. */
  keep(): void;
}

/** What the work of one kind of operation needs and how it is done. */
export interface Work {
  readonly cost: Cost;
  /** Does everything but the publication, which is left to the caller; throws what made it fail. */
  prepare(context: WorkContext): Promise<Prepared>;
}

/**
 * Prepared work that owns what is on `stack`.
 * @param keep makes the disposal of what is on the stack leave the files of the publication
 */
export function prepared(stack: AsyncDisposableStack, publication: Publication, keep: () => void): Prepared {
  const owned = stack.move();
  return { publication, keep, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
