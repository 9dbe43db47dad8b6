import { asc, sql } from "drizzle-orm";
import type { ImageId, LayerId } from "../domain/ids.ts";
import { type Database, isOneOf } from "./database.ts";
import { isUnusedSince } from "./files.ts";
import { REMOVED } from "./images/images.ts";
import { isExpired, isUnreferenced } from "./removal.ts";
import { files, images, layers, mergedLayers } from "./schema.ts";

// These queries read whole tables, so they run in the scan thread. Deletions check each row again.

/** At most `limit` expired images, oldest first. */
export async function expiredImages(db: Database, beforeMs: number, limit: number): Promise<ImageId[]> {
  const query = db.orm.select({ id: images.id }).from(images).where(isExpired(db.orm, beforeMs));
  return await db.scans.upkeepIds<ImageId>(query.orderBy(asc(images.createdAt)).limit(limit));
}

/** At most `limit` layers without an image and without a layer above them. */
export async function unreferencedLayers(db: Database, limit: number): Promise<LayerId[]> {
  return await db.scans.upkeepIds<LayerId>(
    db.orm.select({ id: layers.id }).from(layers).where(isUnreferenced(db.orm)).limit(limit),
  );
}

/** Limits on the time of last use, in `milliseconds` since the epoch; null: nothing expires. */
export interface ExpiryBounds {
  readonly imagesBeforeMs: number | null;
  readonly mergedBeforeMs: number;
  readonly filesBeforeMs: number | null;
}

/** The objects that a deletion of everything expired would delete. */
export interface ExpiryPreview {
  readonly images: number;
  readonly layers: readonly LayerId[];
  readonly files: number;
  /** SHA-256 of contents that no file would refer to */
  readonly blobs: readonly string[];
}

/**
 * Determines the objects that would be deleted.
 * @param held layers that stay, with all layers below them
 */
export async function previewExpiry(
  db: Database,
  bounds: ExpiryBounds,
  held: readonly LayerId[],
): Promise<ExpiryPreview> {
  const { imagesBeforeMs, mergedBeforeMs, filesBeforeMs } = bounds;
  const expired = db.orm
    .select({ id: images.id })
    .from(images)
    .where(imagesBeforeMs === null ? sql`0` : isExpired(db.orm, imagesBeforeMs));
  const expiredImageIds = await db.scans.upkeepIds<ImageId>(expired);
  const layerIds = await db.scans.upkeepIds<LayerId>(
    db.orm
      .select({ id: layers.id })
      .from(layers)
      .where(sql`${layers.id} not in (
      with recursive reached(id) as (
        select layer_id from images where account_id <> ${REMOVED} and not ${isOneOf(images.id, expiredImageIds)}
        union
        select value from json_each(${JSON.stringify(held)})
        union
        select layers.parent_id from reached join layers on layers.id = reached.id where layers.parent_id is not null
      )
      select id from reached
    )`),
  );
  const unused = sql`${mergedLayers.lastUsedAt} < ${mergedBeforeMs} and not ${isOneOf(mergedLayers.id, held)}`;
  const orphaned = sql`${isOneOf(mergedLayers.topId, layerIds)} or ${isOneOf(mergedLayers.belowId, layerIds)}`;
  const mergedIds = await db.scans.upkeepIds<LayerId>(
    db.orm.select({ id: mergedLayers.id }).from(mergedLayers).where(sql`(${unused}) or ${orphaned}`),
  );
  const expiredFiles = filesBeforeMs === null ? { files: 0, blobs: [] } : await previewFileExpiry(db, filesBeforeMs);
  return { images: expiredImageIds.length, layers: [...mergedIds, ...layerIds], ...expiredFiles };
}

async function previewFileExpiry(db: Database, beforeMs: number): Promise<Pick<ExpiryPreview, "files" | "blobs">> {
  const query = db.orm
    .select({ expiredCount: sql`sum(${isUnusedSince(db.orm, beforeMs)})`, count: sql`count(*)`, sha256: files.sha256 })
    .from(files)
    .groupBy(files.sha256)
    .having(sql`sum(${isUnusedSince(db.orm, beforeMs)}) > 0`);
  const rows = await db.scans.upkeep(query.toSQL());
  return {
    files: rows.reduce((sum, [expiredCount]) => sum + Number(expiredCount), 0),
    blobs: rows.filter(([expiredCount, count]) => expiredCount === count).map(([, , sha256]) => String(sha256)),
  };
}
