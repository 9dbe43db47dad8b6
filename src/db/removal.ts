import { and, eq, gte, isNull, lt, notExists, or, sql } from "drizzle-orm";
import { alias } from "drizzle-orm/sqlite-core";
import type { AccountId, ImageId, LayerId } from "../domain/ids.ts";
import { type Database, isOneOf, type Orm } from "./database.ts";
import { pruneHistory } from "./history.ts";
import { deleteMergedLayersOf } from "./merged-layers.ts";
import { images, layers, operations } from "./schema.ts";

export type DeleteOutcome = { readonly deleted: LayerId } | "in_use" | "not_found";

/**
 * Deletes an image and its tag, unless a live operation uses it. Returns its top layer: that layer and those below it may
 * be unreferenced now.
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
    removeImages(tx, [id]);
    return { deleted: row.layerId };
  });
}

function removeImages(tx: Orm, ids: readonly ImageId[]): void {
  tx.delete(images).where(isOneOf(images.id, ids)).run();
  for (const id of ids) pruneHistory(tx, id);
}

/** An image whose row was deleted, with its top layer. */
export type RemovedImage = Pick<typeof images.$inferSelect, "id" | "accountId" | "layerId">;

/** Deletes those of `ids` that are still expired. */
export function deleteExpiredImages(tx: Orm, ids: readonly ImageId[], beforeMs: number): readonly RemovedImage[] {
  // Tag and age are checked here: in the query, they would make SQLite read all expired images by their index.
  const rows = tx
    .select({
      id: images.id,
      accountId: images.accountId,
      layerId: images.layerId,
      tagged: images.tagged,
      createdAt: images.createdAt,
    })
    .from(images)
    .where(and(isOneOf(images.id, ids), isUnused(tx, beforeMs)))
    .all()
    .filter(({ tagged, createdAt }) => !tagged && createdAt < beforeMs);
  removeImages(
    tx,
    rows.map((row) => row.id),
  );
  return rows;
}

/** The image has no tag, was made before `beforeMs`, and is unused. */
export function isExpired(orm: Orm, beforeMs: number) {
  return and(eq(images.tagged, false), lt(images.createdAt, beforeMs), isUnused(orm, beforeMs));
}

/** No live operation uses the image, and none was created with it since `beforeMs`. */
function isUnused(orm: Orm, beforeMs: number) {
  const use = orm
    .select({ id: operations.id })
    .from(operations)
    .where(
      and(eq(operations.imageId, images.id), or(isNull(operations.finishedAt), gte(operations.createdAt, beforeMs))),
    );
  return notExists(use);
}

const child = alias(layers, "child");

/** The layer has no image and no layer above it. */
export function isUnreferenced(orm: Orm) {
  return and(
    notExists(orm.select({ one: sql`1` }).from(images).where(eq(images.layerId, layers.id))),
    notExists(orm.select({ one: sql`1` }).from(child).where(eq(child.parentId, layers.id))),
  );
}

/**
 * Deletes the rows of unreferenced `candidates`, then of layers below them that become unreferenced, down to the first that
 * `isHeld`. Merged layers that refer to them are deleted as well. Returns all ids; the caller removes the files.
 */
export function deleteUnreferencedLayers(
  tx: Orm,
  candidates: readonly LayerId[],
  isHeld: (id: LayerId) => boolean,
): LayerId[] {
  return candidates.flatMap((candidate) => {
    const chain = unreferencedChain(tx, candidate);
    const held = chain.findIndex(isHeld);
    const removed = held === -1 ? chain : chain.slice(0, held);
    if (removed.length === 0) return [];
    const mergedIds = deleteMergedLayersOf(tx, removed);
    tx.delete(layers).where(isOneOf(layers.id, removed)).run();
    return [...mergedIds, ...removed];
  });
}

/** The layer, if it is unreferenced, followed by the layers below it that only this chain refers to. */
function unreferencedChain(tx: Orm, top: LayerId): LayerId[] {
  const rows = tx.all<{ id: LayerId }>(sql`
    with recursive gone(id, parent_id) as (
      select id, parent_id from layers
        where id = ${top}
        and not exists (select 1 from images where layer_id = layers.id)
        and not exists (select 1 from layers other where other.parent_id = layers.id)
      union all
      select layers.id, layers.parent_id from gone join layers on layers.id = gone.parent_id
        where not exists (select 1 from images where layer_id = layers.id)
        and not exists (select 1 from layers other where other.parent_id = layers.id and other.id <> gone.id)
    )
    select id from gone`);
  return rows.map((row) => Object.values(row)[0] as LayerId);
}
