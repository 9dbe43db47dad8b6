import { and, asc, eq, gte, isNull, lt, notExists, or, sql } from "drizzle-orm";
import { alias } from "drizzle-orm/sqlite-core";
import type { AccountId, ImageId, LayerId } from "../domain/ids.ts";
import type { Database, Orm } from "./database.ts";
import { pruneHistory } from "./history.ts";
import { deleteMergedLayersOf } from "./merged-layers.ts";
import { images, layers, operations } from "./schema.ts";

export type DeleteOutcome = { readonly deleted: LayerId } | "in_use" | "not_found";

/**
 * Deletes an image and its tag. Its top layer, which is returned, and those below it may be unreferenced then.
 * An image that a PENDING or EXECUTING operation starts from stays.
 */
export function deleteImage(db: Database, accountId: AccountId, id: ImageId): DeleteOutcome {
  return db.transaction((tx) => {
    const row = tx
      .select({ layerId: images.layerId })
      .from(images)
      .where(and(eq(images.id, id), eq(images.accountId, accountId)))
      .get();
    if (row === undefined) return "not_found";
    const user = tx
      .select({ id: operations.id })
      .from(operations)
      .where(and(eq(operations.imageId, id), isNull(operations.finishedAt)))
      .limit(1)
      .get();
    if (user !== undefined) return "in_use";
    removeImage(tx, id);
    return { deleted: row.layerId };
  });
}

function removeImage(tx: Orm, id: ImageId): void {
  tx.delete(images).where(eq(images.id, id)).run();
  pruneHistory(tx, id);
}

/**
 * Deletes at most `limit` images without a tag that were made before `beforeMs`, and from which no operation
 * started since; returns their top layers.
 */
export function deleteUntaggedImages(tx: Orm, beforeMs: number, limit: number): LayerId[] {
  const use = tx
    .select({ id: operations.id })
    .from(operations)
    .where(
      and(eq(operations.imageId, images.id), or(isNull(operations.finishedAt), gte(operations.createdAt, beforeMs))),
    );
  const rows = tx
    .select({ id: images.id, layerId: images.layerId })
    .from(images)
    .where(and(eq(images.tagged, false), lt(images.createdAt, beforeMs), notExists(use)))
    .orderBy(asc(images.createdAt))
    .limit(limit)
    .all();
  for (const { id } of rows) removeImage(tx, id);
  return rows.map((row) => row.layerId);
}

const child = alias(layers, "child");

function isUnreferenced(tx: Orm) {
  return and(
    notExists(tx.select({ one: sql`1` }).from(images).where(eq(images.layerId, layers.id))),
    notExists(tx.select({ one: sql`1` }).from(child).where(eq(child.parentId, layers.id))),
  );
}

/** At most `limit` layers that neither an image nor another layer stands on. */
export function unreferencedLayers(tx: Orm, limit: number): LayerId[] {
  const rows = tx.select({ id: layers.id }).from(layers).where(isUnreferenced(tx)).limit(limit).all();
  return rows.map((row) => row.id);
}

/**
 * Forgets those of `candidates` that nothing refers to, and then what they alone stood on; a layer that `isHeld`
 * stays. What stood in for them goes, too. The caller removes the files of what is returned.
 */
export function deleteUnreferencedLayers(
  tx: Orm,
  candidates: readonly LayerId[],
  isHeld: (id: LayerId) => boolean,
): LayerId[] {
  const removed: LayerId[] = [];
  for (const candidate of candidates) {
    for (let id: LayerId | null = candidate; id !== null && !isHeld(id); ) {
      const row: { parentId: LayerId | null } | undefined = tx
        .select({ parentId: layers.parentId })
        .from(layers)
        .where(and(eq(layers.id, id), isUnreferenced(tx)))
        .get();
      if (row === undefined) break;
      removed.push(...deleteMergedLayersOf(tx, id), id);
      tx.delete(layers).where(eq(layers.id, id)).run();
      id = row.parentId;
    }
  }
  return removed;
}
