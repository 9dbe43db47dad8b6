import { and, asc, count, eq, getTableColumns } from "drizzle-orm";
import type { ImageId, SandboxId } from "../../domain/ids.ts";
import type { Database } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { deleteImageIn, REMOVED_ROWS_MAX, type RemovedImage } from "../removal.ts";
import { history, images } from "../schema.ts";
import { findSandbox, type SandboxRow } from "./rows.ts";
import { sandboxStates } from "./schema.ts";
import type { SandboxStateRow } from "./states.ts";
import { forgetState } from "./uses.ts";

/** States that one transaction forgets: it must not block the event loop. */
const FORGOTTEN_COUNT_MAX = 10;

/** States without a tag that are kept: the newest ones, or those of a sandbox that has ended but for its pauses. */
export type KeptStates = { readonly newestCount: number } | "all but pauses";

/**
 * Forgets states without a tag, the oldest first, so that only `kept` are left, and deletes those of their images that only
 * the sandbox used; an image from which an instance runs now stays with its state. `removeMore` must follow. Returns the
 * deleted images, and whether a further call may forget more.
 */
export function forgetStates(
  db: Database,
  id: SandboxId,
  kept: KeptStates,
): { readonly removed: readonly RemovedImage[]; readonly hasMore: boolean } {
  return db.transaction((tx) => {
    const sandbox = findSandbox(db, id);
    if (sandbox === null) return { removed: [], hasMore: false };
    const unnamed = tx
      .select({ state: getTableColumns(sandboxStates) })
      .from(sandboxStates)
      .innerJoin(images, eq(images.id, sandboxStates.imageId))
      .where(and(eq(sandboxStates.sandboxId, id), eq(images.tagged, false)))
      .orderBy(asc(sandboxStates.seq))
      .all();
    const excess =
      kept === "all but pauses"
        ? unnamed.filter(({ state }) => state.reason === "pause" && sandbox.state === "ended")
        : unnamed
            .slice(0, Math.max(0, unnamed.length - kept.newestCount))
            .filter(({ state }) => state.seq !== sandbox.headSeq);
    const removed: RemovedImage[] = [];
    let forgottenCount = 0;
    for (const { state } of excess) {
      if (forgottenCount === FORGOTTEN_COUNT_MAX) return { removed, hasMore: true };
      const outcome = forget(tx, sandbox, state);
      if (outcome !== "kept") forgottenCount += 1;
      if (typeof outcome === "object") removed.push(outcome);
    }
    return { removed, hasMore: false };
  });
}

type Outcome = RemovedImage | "forgotten" | "kept";

function forget(tx: Orm, { accountId }: SandboxRow, state: SandboxStateRow): Outcome {
  const { reason, imageId } = state;
  // The sandbox did not make these.
  const isOwn = reason !== "start" && reason !== "rollback";
  const statesCount = countOf(tx, sandboxStates, eq(sandboxStates.imageId, imageId));
  const childrenCount = isOwn ? countOf(tx, images, eq(images.parentId, imageId)) : 0;
  if (!isOwn || statesCount > 1 || childrenCount > REMOVED_ROWS_MAX) {
    forgetState(tx, state);
    return "forgotten";
  }
  const outcome = deleteImageIn(tx, accountId, imageId, () => adopt(tx, imageId));
  if (typeof outcome === "object") {
    forgetState(tx, state);
    return { id: imageId, accountId, layerId: outcome.deleted };
  }
  return "kept";
}

/** Makes the images and steps that were made from the image those of its parent, which may have changed in the transaction. */
function adopt(tx: Orm, id: ImageId): void {
  const image = tx.select({ parentId: images.parentId }).from(images).where(eq(images.id, id)).get();
  if (image !== undefined) tx.update(images).set(image).where(eq(images.parentId, id)).run();
  const step = tx.select({ parentId: history.parentId }).from(history).where(eq(history.imageId, id)).get();
  if (step !== undefined) tx.update(history).set(step).where(eq(history.parentId, id)).run();
}

function countOf(tx: Orm, table: typeof images | typeof sandboxStates, where: ReturnType<typeof and>): number {
  return tx.select({ count: count() }).from(table).where(where).get()?.count ?? 0;
}
