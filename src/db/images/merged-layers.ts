import { and, asc, eq, gt, inArray, lt, not, or, sql } from "drizzle-orm";
import type { AccountId, LayerId } from "../../domain/ids.ts";
import { type Database, isOneOf, statement } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { images, layers, mergedLayers } from "../schema.ts";

/** SQLite's limit for all rows. */
const ALL = -1;

export type MergedLayerRow = typeof mergedLayers.$inferSelect;

const mergedWithTop = statement((orm) =>
  orm
    .select()
    .from(mergedLayers)
    .where(
      and(
        eq(mergedLayers.accountId, sql.placeholder("accountId")),
        sql`${mergedLayers.topId} in (select value from json_each(${sql.placeholder("topIds")}))`,
      ),
    )
    .prepare(),
);

/** Merged layers of an account whose top layer is one of `topIds`. */
export function mergedLayersWithTop(db: Database, accountId: AccountId, topIds: readonly LayerId[]): MergedLayerRow[] {
  return mergedWithTop(db).all({ accountId, topIds: JSON.stringify(topIds) });
}

/**
 * Inserts a merged layer. Returns false, and changes nothing, when a layer that it refers to was deleted, or when the run
 * of layers has a merged layer already.
 */
export function insertMergedLayer(
  db: Database,
  row: Omit<MergedLayerRow, "createdAt" | "lastUsedAt"> & { readonly now: number },
): boolean {
  const { now, ...columns } = row;
  return db.transaction((tx) => {
    const ends = tx
      .select({ id: layers.id })
      .from(layers)
      .where(inArray(layers.id, [row.belowId, row.topId]))
      .all();
    if (ends.length !== 2) return false;
    const result = tx
      .insert(mergedLayers)
      .values({ ...columns, createdAt: now, lastUsedAt: now })
      .onConflictDoNothing()
      .run();
    return result.changes === 1;
  });
}

/** Sets the time of last use where it is older than `beforeMs`, so that not every run writes. */
export function touchMergedLayers(
  db: Database,
  ids: readonly LayerId[],
  times: { readonly now: number; readonly beforeMs: number },
): void {
  if (ids.length === 0) return;
  db.orm
    .update(mergedLayers)
    .set({ lastUsedAt: times.now })
    .where(and(inArray(mergedLayers.id, [...ids]), lt(mergedLayers.lastUsedAt, times.beforeMs)))
    .run();
}

/** Sets the time of last use of merged layers. */
export function setMergedLayersUsedAt(db: Database, ids: readonly LayerId[], lastUsedAt: number): void {
  if (ids.length === 0) return;
  db.orm
    .update(mergedLayers)
    .set({ lastUsedAt })
    .where(inArray(mergedLayers.id, [...ids]))
    .run();
}

/** Merged layers of an account, at most `limit`, the least recently used first. */
export function mergedLayersByUse(db: Database, accountId: AccountId, limit = ALL): MergedLayerRow[] {
  return db.orm
    .select()
    .from(mergedLayers)
    .where(eq(mergedLayers.accountId, accountId))
    .orderBy(asc(mergedLayers.lastUsedAt), asc(mergedLayers.createdAt))
    .limit(limit)
    .all();
}

/** Sizes of an account's merged layers in `bytes`, optionally only of those used after a time or not in `except`. */
export function mergedBytesOf(
  db: Database,
  accountId: AccountId,
  filter: { readonly usedAfterMs?: number; readonly except?: readonly LayerId[] } = {},
): number {
  const { usedAfterMs, except = [] } = filter;
  const [row] = db.orm
    .select({ bytes: sql<number>`coalesce(sum(${mergedLayers.sizeBytes}), 0)` })
    .from(mergedLayers)
    .where(
      and(
        eq(mergedLayers.accountId, accountId),
        usedAfterMs === undefined ? undefined : gt(mergedLayers.lastUsedAt, usedAfterMs),
        except.length === 0 ? undefined : not(isOneOf(mergedLayers.id, except)),
      ),
    )
    .all();
  return row?.bytes ?? 0;
}

export function accountsWithMergedLayers(db: Database): AccountId[] {
  const rows = db.orm.selectDistinct({ accountId: mergedLayers.accountId }).from(mergedLayers).all();
  return rows.map((row) => row.accountId);
}

/** Ids of all merged layers. */
export function allMergedLayers(db: Database): LayerId[] {
  const rows = db.orm.select({ id: mergedLayers.id }).from(mergedLayers).all();
  return rows.map((row) => row.id);
}

/** Deletes the row of a merged layer. The caller removes its files. */
export function deleteMergedLayer(db: Database, id: LayerId): void {
  db.orm.delete(mergedLayers).where(eq(mergedLayers.id, id)).run();
}

/** Deletes the merged layers that refer to one of these layers, and returns their ids. The caller removes the files. */
export function deleteMergedLayersOf(tx: Orm, layerIds: readonly LayerId[]): LayerId[] {
  const rows = tx
    .delete(mergedLayers)
    .where(or(isOneOf(mergedLayers.topId, layerIds), isOneOf(mergedLayers.belowId, layerIds)))
    .returning({ id: mergedLayers.id })
    .all();
  return rows.map((row) => row.id);
}

/** Deletes at most `limit` merged layers that were last used before `beforeMs`, and returns their ids. */
export function deleteMergedLayersUnusedSince(
  tx: Orm,
  beforeMs: number,
  options: { readonly limit: number; readonly isHeld: (id: LayerId) => boolean },
): LayerId[] {
  const rows = tx
    .select({ id: mergedLayers.id })
    .from(mergedLayers)
    .where(lt(mergedLayers.lastUsedAt, beforeMs))
    .limit(options.limit)
    .all();
  const ids = rows.map((row) => row.id).filter((id) => !options.isHeld(id));
  if (ids.length > 0) tx.delete(mergedLayers).where(inArray(mergedLayers.id, ids)).run();
  return ids;
}

/** Number of images of an account above which its layers are summed up in the scan thread. */
const INLINE_SUM_COUNT_MAX = 1000;

/** Size of all layers under an account's images, in `bytes`, layers shared with other accounts included. */
export async function layerBytesOf(db: Database, accountId: AccountId): Promise<number> {
  const some = db.orm
    .select({ id: images.id })
    .from(images)
    .where(eq(images.accountId, accountId))
    .limit(INLINE_SUM_COUNT_MAX + 1)
    .all();
  const query = db.orm
    .select({ bytes: sql<number>`coalesce(sum(${layers.sizeBytes}), 0)` })
    .from(layers)
    .where(
      sql`${layers.id} in (
        with recursive reached(id) as (
          select layer_id from images where account_id = ${accountId}
          union
          select layers.parent_id from reached join layers on layers.id = reached.id where layers.parent_id is not null
        )
        select id from reached
      )`,
    );
  const [row = []] = some.length > INLINE_SUM_COUNT_MAX ? await db.scans.upkeep(query.toSQL()) : query.values();
  return Number(row[0]);
}
