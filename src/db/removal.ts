import { and, eq, gte, isNull, lt, notExists, or, sql } from "drizzle-orm";
import { alias } from "drizzle-orm/sqlite-core";
import type { AccountId, ImageId, LayerId } from "../domain/ids.ts";
import { type Database, isOneOf, type Orm } from "./database.ts";
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
    removeImages(tx, [id]);
    return { deleted: row.layerId };
  });
}

function removeImages(tx: Orm, ids: readonly ImageId[]): void {
  tx.delete(images).where(isOneOf(images.id, ids)).run();
  for (const id of ids) pruneHistory(tx, id);
}

/** Deletes those of `ids` that `isExpired` holds for still; returns their top layers. */
export function deleteExpiredImages(tx: Orm, ids: readonly ImageId[], beforeMs: number): LayerId[] {
  // That they have no tag and are old is looked at here: as a condition it would make the database read all that are.
  const rows = tx
    .select({ id: images.id, layerId: images.layerId, tagged: images.tagged, createdAt: images.createdAt })
    .from(images)
    .where(and(isOneOf(images.id, ids), isUnused(tx, beforeMs)))
    .all()
    .filter(({ tagged, createdAt }) => !tagged && createdAt < beforeMs);
  removeImages(
    tx,
    rows.map((row) => row.id),
  );
  return rows.map((row) => row.layerId);
}

/** The image has no tag, was made before `beforeMs`, and is unused. */
export function isExpired(orm: Orm, beforeMs: number) {
  return and(eq(images.tagged, false), lt(images.createdAt, beforeMs), isUnused(orm, beforeMs));
}

/** No operation started from the image since `beforeMs`, or is still to. */
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

/** Neither an image nor another layer stands on the layer. */
export function isUnreferenced(orm: Orm) {
  return and(
    notExists(orm.select({ one: sql`1` }).from(images).where(eq(images.layerId, layers.id))),
    notExists(orm.select({ one: sql`1` }).from(child).where(eq(child.parentId, layers.id))),
  );
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
  return candidates.flatMap((candidate) => {
    const chain = unreferencedChain(tx, candidate);
    const held = chain.findIndex(isHeld);
    const gone = held === -1 ? chain : chain.slice(0, held);
    if (gone.length === 0) return [];
    const standIns = deleteMergedLayersOf(tx, gone);
    tx.delete(layers).where(isOneOf(layers.id, gone)).run();
    return [...standIns, ...gone];
  });
}

/** The layer, where nothing refers to it, and those below it to which nothing else does, downwards. */
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
