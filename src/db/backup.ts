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
  /** operations that have ended, whose files do not change any more */
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
      .where(sql`status in ('SUCCESS', 'FAILED', 'CANCELLED')`)
      .all()
      .map(({ id }) => id),
  };
}

/** Writes a consistent copy of the database to a new file. Other connections can go on meanwhile. */
export function snapshotDatabase(db: Database, path: string): void {
  db.orm.run(sql`vacuum into ${path}`);
}

/**
 * Deletes the rows of all merged layers, which are a cache: backups do not contain their files. Does nothing with a schema
 * from before the table existed.
 */
export function forgetMergedLayers(db: Database): void {
  const table = db.orm.get<[number] | undefined>(sql`select 1 from sqlite_master where name = 'merged_layers'`);
  if (table !== undefined) db.orm.run(sql`delete from merged_layers`);
}

/** The first fault that SQLite's integrity check finds; null when there is none. */
export function checkDatabase(db: Database): string | null {
  const row = db.orm.get<{ integrity_check: string }>(sql`pragma integrity_check(1)`);
  const text = Object.values(row)[0];
  return text === "ok" ? null : String(text);
}
