import type { OperationId } from "../../domain/ids.ts";
import { type ActiveOperation, refOf } from "./active-operation.ts";
import type { OperationRef } from "./changes.ts";
import { NOT_LEFT } from "./failures.ts";
import type { AtStop } from "./options.ts";

const POLL_MS = 100;

/**
 * Ends the operations that the next process cannot continue, and resolves when only others are active: the number of those that
 * continue, or null when none is active at all.
 * @param work settles with each operation
 */
export async function untilLeft(
  operations: ReadonlyMap<OperationId, ActiveOperation>,
  { work, atStop }: { readonly work: ReadonlySet<Promise<void>>; readonly atStop: (operation: OperationRef) => AtStop },
): Promise<number | null> {
  for (;;) {
    const active = [...operations.values()];
    // One that was cancelled, or ran out of something, is ending already.
    const continues = ({ started, abort }: ActiveOperation) => started && !abort.signal.aborted;
    const stops = active.map((each) => (continues(each) ? atStop(refOf(each)) : "ends"));
    for (const [index, { abort }] of active.entries()) if (stops[index] === "ends") abort.abort(NOT_LEFT);
    if (!stops.some((stop) => stop === "ends" || stop === "completes")) {
      return active.length === 0 ? null : stops.filter((stop) => stop === "continues").length;
    }
    // An operation that was about to complete may have got an instance since.
    await Promise.race([...work, Bun.sleep(POLL_MS)]);
  }
}
