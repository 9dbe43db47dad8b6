import { sql } from "drizzle-orm";
import type { LayerId, OperationId } from "../domain/ids.ts";
import type { Database } from "./database.ts";
import { files, images, layers, operations } from "./schema.ts";

/** Everything outside the database that its rows refer to. */
export interface BackupContents {
  readonly images: number;
  readonly layers: readonly { readonly id: LayerId; readonly diskBytes: number }[];
  /** SHA-256 of uploaded contents */
  readonly blobs: readonly string[];
  /** operations that may have outputs */
  readonly operations: readonly OperationId[];
}

export function backupContents(db: Database): BackupContents {
  return {
    images: db.orm.select({ id: images.id }).from(images).all().length,
    layers: db.orm.select({ id: layers.id, diskBytes: layers.diskBytes }).from(layers).all(),
    blobs: db.orm
      .selectDistinct({ sha256: files.sha256 })
      .from(files)
      .all()
      .map(({ sha256 }) => sha256),
    operations: db.orm
      .select({ id: operations.id })
      .from(operations)
      .where(sql`kind = 'instance' and status = 'SUCCESS'`)
      .all()
      .map(({ id }) => id),
  };
}

/** Writes the database as it is at this moment to a new file, while others go on using it. */
export function snapshotDatabase(db: Database, path: string): void {
  db.orm.run(sql`vacuum into ${path}`);
}

/**
 * Forgets all merged layers: they are a cache, whose files no backup holds. A schema that is older than they are has
 * none.
 */
export function forgetMergedLayers(db: Database): void {
  const table = db.orm.get<[number] | undefined>(sql`select 1 from sqlite_master where name = 'merged_layers'`);
  if (table !== undefined) db.orm.run(sql`delete from merged_layers`);
}

/** What is wrong with the file of the database, or null. */
export function checkDatabase(db: Database): string | null {
  const row = db.orm.get<{ integrity_check: string }>(sql`pragma integrity_check(1)`);
  const text = Object.values(row)[0];
  return text === "ok" ? null : String(text);
}
