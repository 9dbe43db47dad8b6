import { and, asc, eq, lt, notExists, sql } from "drizzle-orm";
import type { AccountId, FileId } from "../domain/ids.ts";
import { ensureAccount } from "./accounts.ts";
import { type Database, isOneOf, type Orm } from "./database.ts";
import { files, operationFiles } from "./schema.ts";

export type FileRow = typeof files.$inferSelect;

/** Names the content for the account; the same content keeps the uuid that it got first. */
export function upsertFile(
  db: Database,
  file: { readonly accountId: AccountId; readonly sha256: string; readonly sizeBytes: number; readonly now: number },
): FileRow {
  const { accountId, sha256, sizeBytes, now } = file;
  return db.transaction((tx) => {
    ensureAccount(tx, accountId, now);
    return tx
      .insert(files)
      .values({ id: Bun.randomUUIDv7() as FileId, accountId, sha256, sizeBytes, createdAt: now, lastUsedAt: now })
      .onConflictDoUpdate({ target: [files.accountId, files.sha256], set: { lastUsedAt: now } })
      .returning()
      .get();
  });
}

/** By uuid, by hash, or by both, which must then agree. */
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

/** The file was last used before `beforeMs`, and no operation still needs it. */
export function isUnusedSince(orm: Orm, beforeMs: number) {
  const need = orm.select({ one: sql`1` }).from(operationFiles).where(eq(operationFiles.fileId, files.id));
  return and(lt(files.lastUsedAt, beforeMs), notExists(need));
}

/**
 * Forgets at most `limit` files that `isUnusedSince`, the oldest first; returns the rows, whose blobs may be
 * unreferenced now.
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

/** True when any account has a file of this content. */
export function isBlobReferenced(orm: Orm, sha256: string): boolean {
  return orm.select({ id: files.id }).from(files).where(eq(files.sha256, sha256)).limit(1).get() !== undefined;
}

/** Which of these contents any account has a file of. */
export function referencedBlobs(db: Database, sha256s: readonly string[]): Set<string> {
  const rows = db.orm.selectDistinct({ sha256: files.sha256 }).from(files).where(isOneOf(files.sha256, sha256s)).all();
  return new Set(rows.map((row) => row.sha256));
}
