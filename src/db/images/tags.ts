import { and, desc, eq, sql } from "drizzle-orm";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, ImageId } from "../../domain/ids.ts";
import { TAGS_COUNT_MAX } from "../../domain/image.ts";
import type { Database } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { images, tags } from "../schema.ts";
import { findImage, type ImageRow, isShown } from "./images.ts";

/** A tag, its image, and when the image got it. */
export type TagRow = Pick<typeof tags.$inferSelect, "name" | "imageId" | "setAt">;
/** The columns of a TagRow. */
export const tagColumns = { name: tags.name, imageId: tags.imageId, setAt: tags.setAt };

/** A tag of the account; null when it has none of that name. */
export function findTag(db: Database, accountId: AccountId, name: string): TagRow | null {
  const isIt = and(eq(tags.accountId, accountId), eq(tags.name, name));
  return db.orm.select(tagColumns).from(tags).where(isIt).get() ?? null;
}

/** How an image gets a tag: `added` to its others, or as a replacement of the one that it shows. */
export type TagChange = "added" | "replaced";

export interface TagToSet {
  readonly name: string;
  readonly change: TagChange;
  /** `milliseconds` since the epoch */
  readonly now: number;
}

/**
 * Moves a tag to the image, which shows it from now on. Null when the account has
 * no such image.
 * @throws ApiError `conflict` when the image has as many tags as it may have
 */
export function setTag(db: Database, accountId: AccountId, imageId: ImageId, tag: TagToSet): ImageRow | null {
  return db.transaction((tx) => {
    if (findImage(tx, accountId, imageId) === null) return null;
    moveTag(tx, accountId, imageId, tag);
    return findImage(tx, accountId, imageId);
  });
}

/**
 * `setTag` for a transaction whose caller has checked that the image belongs to the account. Returns the image that has lost
 * the tag; null when there is none.
 */
export function moveTag(
  orm: Orm,
  accountId: AccountId,
  imageId: ImageId,
  { name, change, now }: TagToSet,
): ImageId | null {
  const previous = orm
    .delete(tags)
    .where(and(eq(tags.accountId, accountId), eq(tags.name, name)))
    .returning({ imageId: tags.imageId })
    .get();
  const lostBy = previous === undefined || previous.imageId === imageId ? null : previous.imageId;
  if (lostBy !== null) showLatest(orm, lostBy);
  if (change === "replaced")
    orm
      .delete(tags)
      .where(and(eq(tags.imageId, imageId), isShown))
      .run();
  else {
    requireRoom(orm, imageId);
    orm
      .update(tags)
      .set({ isShown: false })
      .where(and(eq(tags.imageId, imageId), isShown))
      .run();
  }
  orm.insert(tags).values({ accountId, name, imageId, setAt: now, isShown: true }).run();
  orm.update(images).set({ tagged: true }).where(eq(images.id, imageId)).run();
  return lostBy;
}

/**
 * Removes one tag of the image, or all if `name` is not given. A tag that the image does not have changes nothing. Null when
 * the account has no such image.
 */
export function removeTags(db: Database, accountId: AccountId, imageId: ImageId, name?: string): ImageRow | null {
  return db.transaction((tx) => {
    if (findImage(tx, accountId, imageId) === null) return null;
    tx.delete(tags)
      .where(and(eq(tags.imageId, imageId), name === undefined ? undefined : eq(tags.name, name)))
      .run();
    showLatest(tx, imageId);
    return findImage(tx, accountId, imageId);
  });
}

/** Makes an image that has lost its shown tag show the latest of the others. */
function showLatest(orm: Orm, imageId: ImageId): void {
  const { accountId, name, isShown } = tags;
  const latest = orm
    .select({ accountId, name, isShown })
    .from(tags)
    .where(eq(tags.imageId, imageId))
    // Of those that were set in the same millisecond, the last has the highest number.
    .orderBy(desc(isShown), desc(tags.setAt), desc(sql`tags.rowid`))
    .limit(1)
    .get();
  if (latest === undefined) orm.update(images).set({ tagged: false }).where(eq(images.id, imageId)).run();
  else if (!latest.isShown) {
    const isLatest = and(eq(accountId, latest.accountId), eq(name, latest.name));
    orm.update(tags).set({ isShown: true }).where(isLatest).run();
  }
}

/** @throws ApiError `conflict` when the image has as many tags as it may have */
function requireRoom(orm: Orm, imageId: ImageId): void {
  const [row] = orm.select({ count: sql<number>`count(*)` }).from(tags).where(eq(tags.imageId, imageId)).all();
  if ((row?.count ?? 0) < TAGS_COUNT_MAX) return;
  throw new ApiError("conflict", `the image has ${TAGS_COUNT_MAX} tags, and may not have more`, { uuid: imageId });
}
