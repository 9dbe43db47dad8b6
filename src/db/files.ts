import { and, asc, desc, eq, gte, lt, lte, notExists, sql } from "drizzle-orm";
import type { AccountId, FileId } from "../domain/ids.ts";
import { ensureAccount } from "./accounts.ts";
import { type Database, isOneOf } from "./database.ts";
import type { Orm } from "./drizzle-client.ts";
import { LARGE_OFFSET_MIN, type ListWindow } from "./scans/scans.ts";
import { files, operationFiles } from "./schema.ts";

export type FileRow = typeof files.$inferSelect;

/** Adds the content to the account's files. A content that is there already keeps its uuid and counts as used now. */
export function upsertFile(
  db: Database,
  file: { readonly accountId: AccountId; readonly sha256: string; readonly sizeBytes: number; readonly now: number },
): FileRow {
  const { accountId, sha256, sizeBytes, now } = file;
  return db.transaction((tx) => {
    ensureAccount(db, accountId, now);
    return tx
      .insert(files)
      .values({
        id: Bun.randomUUIDv7() as FileId,
        accountId,
        sha256,
        sizeBytes,
        createdAt: now,
        uploadedAt: now,
        lastUsedAt: now,
      })
      .onConflictDoUpdate({ target: [files.accountId, files.sha256], set: { uploadedAt: now, lastUsedAt: now } })
      .returning()
      .get();
  });
}

/** Finds a file by its uuid, its hash, or both; null when there is none, or when both do not name the same file. */
export function getFile(
  db: Database,
  accountId: AccountId,
  key: { readonly uuid?: FileId | undefined; readonly sha256?: string | undefined },
): FileRow | null {
  const { uuid, sha256 } = key;
  if (uuid === undefined && sha256 === undefined) return null;
  const row = db.orm
    .select()
    .from(files)
    .where(
      and(
        eq(files.accountId, accountId),
        uuid === undefined ? undefined : eq(files.id, uuid),
        sha256 === undefined ? undefined : eq(files.sha256, sha256),
      ),
    )
    .get();
  return row ?? null;
}

/**
 * By their last upload, newest first, then by id; a page past the end is empty. The bounds of `window` apply to the upload,
 * too. Skips a large offset in the scan thread.
 */
export async function listFiles(db: Database, accountId: AccountId, window: ListWindow): Promise<FileRow[]> {
  const { limit, offset, sinceMs, untilMs, signal } = window;
  // Only the covering index is read, so that a large offset does not read the skipped rows.
  const page = db.orm
    .select({ id: files.id })
    .from(files)
    .where(
      and(
        eq(files.accountId, accountId),
        sinceMs === undefined ? undefined : gte(files.uploadedAt, sinceMs),
        untilMs === undefined ? undefined : lte(files.uploadedAt, untilMs),
      ),
    )
    .orderBy(desc(files.uploadedAt), desc(files.id))
    .limit(limit)
    .offset(offset);
  const isLarge = offset >= LARGE_OFFSET_MIN;
  const ids = isLarge ? await db.scans.ids<FileId>(page, { accountId, signal }) : page.all().map(({ id }) => id);
  return db.orm
    .select()
    .from(files)
    .where(isOneOf(files.id, ids))
    .orderBy(desc(files.uploadedAt), desc(files.id))
    .all();
}

/** The file was last used before `beforeMs`, and no live operation needs it. */
export function isUnusedSince(orm: Orm, beforeMs: number) {
  const need = orm.select({ one: sql`1` }).from(operationFiles).where(eq(operationFiles.fileId, files.id));
  return and(lt(files.lastUsedAt, beforeMs), notExists(need));
}

/**
 * Deletes at most `limit` files for which `isUnusedSince` holds, the least recently used first. Returns their rows: their
 * blobs may be unreferenced now.
 */
export function deleteFilesUnusedSince(tx: Orm, beforeMs: number, limit: number): FileRow[] {
  const rows = tx
    .select()
    .from(files)
    .where(isUnusedSince(tx, beforeMs))
    .orderBy(asc(files.lastUsedAt))
    .limit(limit)
    .all();
  for (const { id } of rows) tx.delete(files).where(eq(files.id, id)).run();
  return rows;
}

/** True when a file of any account has this content. */
export function isBlobReferenced(orm: Orm, sha256: string): boolean {
  return orm.select({ id: files.id }).from(files).where(eq(files.sha256, sha256)).limit(1).get() !== undefined;
}

/** The contents among `sha256s` that files of any account have. */
export function referencedBlobs(db: Database, sha256s: readonly string[]): Set<string> {
  const rows = db.orm.selectDistinct({ sha256: files.sha256 }).from(files).where(isOneOf(files.sha256, sha256s)).all();
  return new Set(rows.map((row) => row.sha256));
}
