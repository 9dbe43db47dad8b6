import { sql } from "drizzle-orm";
import { type LayerId, type LogId, parseUuid, type SandboxId } from "../domain/ids.ts";
import type { Database } from "./database.ts";
import { sandboxes } from "./sandboxes/schema.ts";
import { files, images, layers, operations } from "./schema.ts";

/** Everything outside the database that its rows refer to. */
export interface BackupContents {
  readonly images: number;
  readonly layers: readonly { readonly id: LayerId; readonly diskBytes: number }[];
  /** SHA-256 of uploaded contents */
  readonly blobs: readonly string[];
  /** logs of operations that have ended, whose files no longer change, and of sandboxes */
  readonly logs: readonly LogId[];
}

export function backupContents(db: Database): BackupContents {
  const ended = db.orm
    .select({ id: operations.id })
    .from(operations)
    .where(sql`status in ('SUCCESS', 'FAILED', 'CANCELLED')`)
    .all();
  return {
    images: db.orm.select({ id: images.id }).from(images).all().length,
    layers: db.orm.select({ id: layers.id, diskBytes: layers.diskBytes }).from(layers).all(),
    blobs: db.orm
      .selectDistinct({ sha256: files.sha256 })
      .from(files)
      .all()
      .map(({ sha256 }) => sha256),
    logs: [...ended, ...sandboxIds(db)].map(({ id }) => id),
  };
}

/** The sandboxes; none in a schema that is older than they are. */
function sandboxIds(db: Database): { readonly id: SandboxId }[] {
  return hasTable(db, "sandboxes") ? db.orm.select({ id: sandboxes.id }).from(sandboxes).all() : [];
}

function hasTable({ orm }: Database, name: string): boolean {
  return orm.get<[number] | undefined>(sql`select 1 from sqlite_master where name = ${name}`) !== undefined;
}

/**
 * The first id of a layer, operation or sandbox that is not a UUID; null when there is none. They name files, so an id of another form
 * could be the path of any file of the host.
 */
export function foreignId(db: Database): string | null {
  const rows = [layers, operations].flatMap((table) => db.orm.select({ id: table.id }).from(table).all());
  return [...rows, ...sandboxIds(db)].find(({ id }) => parseUuid(id) !== id)?.id ?? null;
}

/** Writes a consistent copy of the database to a new file. Other connections can write meanwhile. */
export function snapshotDatabase(db: Database, path: string): void {
  db.orm.run(sql`vacuum into ${path}`);
}

/**
 * Deletes the rows that backups do not contain: those of merged layers, which are a cache, those of the memory of
 * sandboxes, which only this host can resume and which has every secret in it, and those of sessions on the page, because a
 * restore must not sign in people who have signed out since. The schema may be older than the tables.
 */
export function forgetWhatPasses(db: Database): void {
  for (const name of ["merged_layers", "memory_images", "web_sessions"]) {
    if (hasTable(db, name)) db.orm.run(sql`delete from ${sql.identifier(name)}`);
  }
}

/** The first fault that SQLite's integrity check finds; null when there is none. */
export function checkDatabase(db: Database): string | null {
  const row = db.orm.get<{ integrity_check: string }>(sql`pragma integrity_check(1)`);
  const text = Object.values(row)[0];
  return text === "ok" ? null : String(text);
}
