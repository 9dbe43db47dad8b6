import { and, asc, eq, gte, lt, notExists, sql } from "drizzle-orm";
import type { AccountId, FileId, ImageId } from "../../domain/ids.ts";
import type { ImageDefaults } from "../../domain/image-defaults.ts";
import { ensureAccount } from "../accounts.ts";
import type { Database } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { type FileRow, getFile } from "../files.ts";
import { getHistory, insertHistory } from "../images/history.ts";
import { getImage, type ImageRow } from "../images/images.ts";
import { images } from "../schema.ts";
import { buildFiles, buildSteps, templateBuilds } from "./schema.ts";

/** The image after a step that an earlier build has done; null when there is none. Counts as a use. */
export function keptStep(db: Database, accountId: AccountId, key: string, now: number): ImageRow | null {
  const isIt = and(eq(buildSteps.accountId, accountId), eq(buildSteps.key, key));
  const row = db.orm.select({ imageId: buildSteps.imageId }).from(buildSteps).where(isIt).get();
  const image = row === undefined ? null : getImage(db, accountId, row.imageId);
  if (image !== null) db.orm.update(buildSteps).set({ usedAt: now }).where(isIt).run();
  return image;
}

/**
 * Keeps the image after a step for later builds. The image that it replaces is kept as long as others, because a build may work
 * on it.
 */
export function keepStep(
  db: Database,
  { accountId, key, imageId, now }: { accountId: AccountId; key: string; imageId: ImageId; now: number },
): void {
  const isIt = and(eq(buildSteps.accountId, accountId), eq(buildSteps.key, key));
  db.transaction((tx) => {
    const former = tx.select().from(buildSteps).where(isIt).get();
    if (former !== undefined) {
      const replaced = `${key}-${former.imageId}`;
      tx.delete(buildSteps)
        .where(and(eq(buildSteps.accountId, accountId), eq(buildSteps.key, replaced)))
        .run();
      tx.update(buildSteps).set({ key: replaced, usedAt: now }).where(isIt).run();
    }
    tx.insert(buildSteps).values({ accountId, key, imageId, usedAt: now }).run();
  });
}

/** A step was used since `beforeMs` for which the image `images` is kept. */
export function isKeptSince(orm: Orm, beforeMs: number) {
  const step = orm
    .select({ one: sql`1` })
    .from(buildSteps)
    .where(and(eq(buildSteps.imageId, images.id), gte(buildSteps.usedAt, beforeMs)));
  return sql`exists ${step}`;
}

/** Forgets at most `limit` steps that were not used since `beforeMs`. Returns their images, which may be deleted already. */
export function forgetStepsUnusedSince(
  db: Database,
  beforeMs: number,
  limit: number,
): { readonly accountId: AccountId; readonly imageId: ImageId }[] {
  return db.transaction((tx) => {
    const rows = tx
      .select()
      .from(buildSteps)
      .where(lt(buildSteps.usedAt, beforeMs))
      .orderBy(asc(buildSteps.usedAt))
      .limit(limit)
      .all();
    for (const { accountId, key } of rows) {
      tx.delete(buildSteps)
        .where(and(eq(buildSteps.accountId, accountId), eq(buildSteps.key, key)))
        .run();
    }
    return rows;
  });
}

/** Whether the image has no tag, and neither a build nor a kept step names it. */
export function isLeftOver(db: Database, accountId: AccountId, id: ImageId): boolean {
  const build = db.orm.select({ one: sql`1` }).from(templateBuilds).where(eq(templateBuilds.imageId, images.id));
  const step = db.orm.select({ one: sql`1` }).from(buildSteps).where(eq(buildSteps.imageId, images.id));
  const row = db.orm
    .select({ id: images.id })
    .from(images)
    .where(
      and(
        eq(images.id, id),
        eq(images.accountId, accountId),
        eq(images.tagged, false),
        notExists(build),
        notExists(step),
      ),
    )
    .get();
  return row !== undefined;
}

/** The archive that a client uploaded under a hash; null when there is none. */
export function buildFile(db: Database, accountId: AccountId, hash: string): FileRow | null {
  const row = db.orm
    .select({ fileId: buildFiles.fileId })
    .from(buildFiles)
    .where(and(eq(buildFiles.accountId, accountId), eq(buildFiles.hash, hash)))
    .get();
  return row === undefined ? null : getFile(db, accountId, { uuid: row.fileId });
}

/** Names an uploaded file by the hash of its client. It replaces an earlier one. */
export function setBuildFile(
  db: Database,
  { accountId, hash, fileId, now }: { accountId: AccountId; hash: string; fileId: FileId; now: number },
): void {
  db.transaction((tx) => {
    ensureAccount(db, accountId, now);
    tx.insert(buildFiles)
      .values({ accountId, hash, fileId, createdAt: now })
      .onConflictDoUpdate({ target: [buildFiles.accountId, buildFiles.hash], set: { fileId, createdAt: now } })
      .run();
  });
}

/** Forgets at most `limit` archives that were uploaded before `beforeMs`; clients upload them again. Returns their number. */
export function forgetBuildFilesBefore(db: Database, beforeMs: number, limit: number): number {
  const { accountId, hash, createdAt } = buildFiles;
  const old = db.orm.select({ accountId, hash }).from(buildFiles).where(lt(createdAt, beforeMs)).limit(limit).all();
  for (const row of old) {
    db.orm
      .delete(buildFiles)
      .where(and(eq(accountId, row.accountId), eq(hash, row.hash)))
      .run();
  }
  return old.length;
}

/** Makes an image with the files of another one, and defaults of its own. */
export function deriveImage(db: Database, parent: ImageRow, defaults: ImageDefaults, now: number): ImageRow {
  return db.transaction((tx) => {
    const { accountId, layerId, operationId } = parent;
    const image = { id: Bun.randomUUIDv7() as ImageId, parentId: parent.id, sizeBytes: 0 };
    tx.insert(images)
      .values({ ...image, ...defaults, accountId, layerId, operationId, createdAt: now })
      .run();
    const step = getHistory(db, parent.id);
    if (step !== null) insertHistory(db, { image, operationId: step.operationId, startedAt: null, now });
    const row = getImage(db, accountId, image.id);
    if (row === null) throw new Error("an image without a row");
    return row;
  });
}
