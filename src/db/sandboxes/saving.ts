import { eq } from "drizzle-orm";
import type { ImageId, OperationId, SandboxId } from "../../domain/ids.ts";
import type { SaveReason } from "../../domain/sandbox.ts";
import type { Database } from "../database.ts";
import { operations } from "../schema.ts";
import { insertMemoryImage, type NewMemoryImage } from "./memory-images.ts";
import { changeState, findSandbox, type SandboxRow, updateSandbox } from "./rows.ts";
import { insertState } from "./states.ts";

/** A saved state of a sandbox, as the operation that makes its image publishes it. */
export interface SavedState {
  readonly id: SandboxId;
  /** the instance whose files it has */
  readonly instance: OperationId;
  readonly reason: SaveReason;
  /** true: the instance has ended, so that the sandbox is paused; false: it runs on */
  readonly isPaused: boolean;
  /** the memory of the instance at the same moment; absent: it is not kept */
  readonly memory?: NewMemoryImage | undefined;
}

/** The sandbox, while the instance is its present one, or was the last one before it failed. */
function sandboxOf(db: Database, { id, instance }: SavedState): SandboxRow | null {
  const row = findSandbox(db, id);
  if (row?.operationId === instance) return row;
  // The sandbox has failed in the transaction that ended its instance, and nothing has happened to it since.
  const isLast = row?.state === "failed" && row.stateAt === endOf(db, instance);
  return isLast ? row : null;
}

/** When an operation ended, in `milliseconds` since the epoch; null: it has not ended, or is forgotten. */
function endOf(db: Database, id: OperationId): number | null {
  const row = db.orm.select({ endedAt: operations.finishedAt }).from(operations).where(eq(operations.id, id)).get();
  return row?.endedAt ?? null;
}

/** The head below which a state is saved; null when the sandbox has moved on. To be called in a transaction. */
export function headOf(db: Database, saved: SavedState): ImageId | null {
  return sandboxOf(db, saved)?.headId ?? null;
}

/**
 * Moves the head of a sandbox to a new state. To be called in the transaction that publishes the image. A sandbox that got
 * another instance meanwhile, or another head after it failed, stays as it is.
 * @param imageId null: nothing has changed since the head
 */
export function saveState(db: Database, saved: SavedState, imageId: ImageId | null, now: number): void {
  const row = sandboxOf(db, saved);
  if (row === null) return;
  const { id, headSeq: parentSeq } = row;
  const seqOf = (image: ImageId) =>
    insertState(db, { sandboxId: id, imageId: image, parentSeq, reason: saved.reason }, now);
  const head = imageId === null ? {} : { headId: imageId, headSeq: seqOf(imageId) };
  if (!saved.isPaused) return void updateSandbox(db, id, head);
  changeState(db, id, "paused", { ...head, now });
  if (saved.memory !== undefined) insertMemoryImage(db, id, saved.memory, now);
}
