import { sql } from "drizzle-orm";
import { type LayerId, type OperationId, parseUuid } from "../domain/ids.ts";
import type { Database } from "./database.ts";
import { files, images, layers, operations } from "./schema.ts";

/** Everything outside the database that its rows refer to. */
export interface BackupContents {
  readonly images: number;
  readonly layers: readonly { readonly id: LayerId; readonly diskBytes: number }[];
  /** SHA-256 of uploaded contents */
  readonly blobs: readonly string[];
  /** operations that have ended, whose files no longer change */
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

/**
 * The first id of a layer or operation that is not a UUID; null when there is none. They name files, so an id of another form
 * could be the path of any file of the host.
 */
export function foreignId({ orm }: Database): string | null {
  for (const table of [layers, operations]) {
    for (const { id } of orm.select({ id: table.id }).from(table).all()) if (parseUuid(id) !== id) return id;
  }
  return null;
}

/** Writes a consistent copy of the database to a new file. Other connections can write meanwhile. */
export function snapshotDatabase(db: Database, path: string): void {
  db.orm.run(sql`vacuum into ${path}`);
}

/**
 * Deletes the rows that backups do not contain: those of merged layers, which are a cache, and those of sessions on the
 * page, because a restore must not sign in people who have signed out since. The schema may be older than the tables.
 */
export function forgetWhatPasses(db: Database): void {
  for (const name of ["merged_layers", "web_sessions"]) {
    const table = db.orm.get<[number] | undefined>(sql`select 1 from sqlite_master where name = ${name}`);
    if (table !== undefined) db.orm.run(sql`delete from ${sql.identifier(name)}`);
  }
}

/** The first fault that SQLite's integrity check finds; null when there is none. */
export function checkDatabase(db: Database): string | null {
  const row = db.orm.get<{ integrity_check: string }>(sql`pragma integrity_check(1)`);
  const text = Object.values(row)[0];
  return text === "ok" ? null : String(text);
}
