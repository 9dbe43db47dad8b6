import { asc, sql } from "drizzle-orm";
import type { ImageId, LayerId } from "../domain/ids.ts";
import { type Database, isOneOf } from "./database.ts";
import { isUnusedSince } from "./files.ts";
import { isExpired, isUnreferenced } from "./removal.ts";
import { files, images, layers, mergedLayers } from "./schema.ts";

// What this finds grows with the store, so that it is read in the thread; whoever removes it looks again.

/** At most `limit` images that are past their time, the oldest first. */
export async function expiredImages(db: Database, beforeMs: number, limit: number): Promise<ImageId[]> {
  const query = db.orm.select({ id: images.id }).from(images).where(isExpired(db.orm, beforeMs));
  return await db.scans.ids<ImageId>(query.orderBy(asc(images.createdAt)).limit(limit));
}

/** At most `limit` layers that neither an image nor another layer stands on. */
export async function unreferencedLayers(db: Database, limit: number): Promise<LayerId[]> {
  return await db.scans.ids<LayerId>(
    db.orm.select({ id: layers.id }).from(layers).where(isUnreferenced(db.orm)).limit(limit),
  );
}

/** Bounds of the times of last use, in `milliseconds`; null: nothing is too old. */
export interface ExpiryBounds {
  readonly imagesBeforeMs: number | null;
  readonly mergedBeforeMs: number;
  readonly filesBeforeMs: number | null;
}

/** What would go if all that is past its time went. */
export interface Foreseen {
  readonly images: number;
  readonly layers: readonly LayerId[];
  readonly files: number;
  /** contents that no file would have any more */
  readonly blobs: readonly string[];
}

/** @param held layers that stay, and with them what they stand on */
export async function foresee(db: Database, bounds: ExpiryBounds, held: readonly LayerId[]): Promise<Foreseen> {
  const { imagesBeforeMs, mergedBeforeMs, filesBeforeMs } = bounds;
  const gone = db.orm
    .select({ id: images.id })
    .from(images)
    .where(imagesBeforeMs === null ? sql`0` : isExpired(db.orm, imagesBeforeMs));
  const goneImages = await db.scans.ids<ImageId>(gone);
  const goneLayers = await db.scans.ids<LayerId>(
    db.orm
      .select({ id: layers.id })
      .from(layers)
      .where(sql`${layers.id} not in (
      with recursive reached(id) as (
        select layer_id from images where not ${isOneOf(images.id, goneImages)}
        union
        select value from json_each(${JSON.stringify(held)})
        union
        select layers.parent_id from reached join layers on layers.id = reached.id where layers.parent_id is not null
      )
      select id from reached
    )`),
  );
  const unused = sql`${mergedLayers.lastUsedAt} < ${mergedBeforeMs} and not ${isOneOf(mergedLayers.id, held)}`;
  const orphaned = sql`${isOneOf(mergedLayers.topId, goneLayers)} or ${isOneOf(mergedLayers.belowId, goneLayers)}`;
  const standIns = await db.scans.ids<LayerId>(
    db.orm.select({ id: mergedLayers.id }).from(mergedLayers).where(sql`(${unused}) or ${orphaned}`),
  );
  const goneFiles = filesBeforeMs === null ? { files: 0, blobs: [] } : await foreseeFiles(db, filesBeforeMs);
  return { images: goneImages.length, layers: [...standIns, ...goneLayers], ...goneFiles };
}

async function foreseeFiles(db: Database, beforeMs: number): Promise<Pick<Foreseen, "files" | "blobs">> {
  const query = db.orm
    .select({ goneCount: sql`sum(${isUnusedSince(db.orm, beforeMs)})`, count: sql`count(*)`, sha256: files.sha256 })
    .from(files)
    .groupBy(files.sha256)
    .having(sql`sum(${isUnusedSince(db.orm, beforeMs)}) > 0`);
  const rows = await db.scans.all(query.toSQL());
  return {
    files: rows.reduce((sum, [goneCount]) => sum + Number(goneCount), 0),
    blobs: rows.filter(([goneCount, count]) => goneCount === count).map(([, , sha256]) => String(sha256)),
  };
}
