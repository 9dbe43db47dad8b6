import { and, desc, eq, getTableColumns, gte, lt, lte, sql } from "drizzle-orm";
import type { AccountId, ImageId } from "../domain/ids.ts";
import type { ImageReference } from "../domain/image.ts";
import type { Database, Orm } from "./database.ts";
import { FAR_OFFSET_MIN } from "./scans.ts";
import { images, tags } from "./schema.ts";

/** An image with the tag that it shows. */
export type ImageRow = typeof images.$inferSelect & { readonly tag: string | null };

export interface ImageFilter {
  readonly limit: number;
  readonly offset: number;
  /** only images with a tag, or only those without */
  readonly tagged?: boolean | undefined;
  readonly tagPrefix?: string | undefined;
  /** bounds of the creation time in `milliseconds`, both inclusive */
  readonly sinceMs?: number | undefined;
  readonly untilMs?: number | undefined;
}

const imageColumns = { ...getTableColumns(images), tag: tags.name };

function selectImages(orm: Orm) {
  return orm.select(imageColumns).from(images).leftJoin(tags, eq(tags.imageId, images.id));
}

function findImage(orm: Orm, accountId: AccountId, id: ImageId): ImageRow | null {
  return (
    selectImages(orm)
      .where(and(eq(images.id, id), eq(images.accountId, accountId)))
      .get() ?? null
  );
}

export function getImage(db: Database, accountId: AccountId, id: ImageId): ImageRow | null {
  return findImage(db.orm, accountId, id);
}

/** The image of a uuid, or the one that carries a tag. */
export function resolveImage(db: Database, accountId: AccountId, reference: ImageReference): ImageRow | null {
  if ("uuid" in reference) return getImage(db, accountId, reference.uuid);
  const row = db.orm
    .select(imageColumns)
    .from(tags)
    .innerJoin(images, eq(images.id, tags.imageId))
    .where(and(eq(tags.accountId, accountId), eq(tags.name, reference.tag)))
    .get();
  return row ?? null;
}

/** Newest first, then by id; a page past the end is empty. */
export function listImages(db: Database, accountId: AccountId, filter: ImageFilter): ImageRow[] {
  const page = imagePage(db.orm, accountId, filter).as("page");
  return db.orm
    .select(imageColumns)
    .from(page)
    .innerJoin(images, eq(images.id, page.id))
    .leftJoin(tags, eq(tags.imageId, images.id))
    .orderBy(desc(images.createdAt), desc(images.id))
    .all();
}

/** The same for any offset: what is skipped is skipped in a thread, where it takes long. */
export async function listImagesFar(db: Database, accountId: AccountId, filter: ImageFilter): Promise<ImageRow[]> {
  if (filter.offset < FAR_OFFSET_MIN) return listImages(db, accountId, filter);
  const ids = (await db.scans.all(imagePage(db.orm, accountId, filter).toSQL())).map(([id]) => id);
  return db.orm
    .select(imageColumns)
    .from(images)
    .leftJoin(tags, eq(tags.imageId, images.id))
    .where(sql`${images.id} in (select value from json_each(${JSON.stringify(ids)}))`)
    .orderBy(desc(images.createdAt), desc(images.id))
    .all();
}

function imagePage(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  return filter.tagPrefix ? pageByPrefix(orm, accountId, filter) : pageByTime(orm, accountId, filter);
}

function timeBounds(filter: ImageFilter) {
  return and(
    filter.sinceMs === undefined ? undefined : gte(images.createdAt, filter.sinceMs),
    filter.untilMs === undefined ? undefined : lte(images.createdAt, filter.untilMs),
  );
}

/** Found in a covering index, so that a large offset does not read the rows that it skips. */
function pageByTime(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  const tagged = filter.tagged ?? (filter.tagPrefix === "" ? true : undefined);
  return orm
    .select({ id: images.id })
    .from(images)
    .where(
      and(
        eq(images.accountId, accountId),
        tagged === undefined ? undefined : eq(images.tagged, tagged),
        // Every tag begins with the empty prefix, and an image without a tag does not.
        filter.tagPrefix === undefined ? undefined : eq(images.tagged, true),
        timeBounds(filter),
      ),
    )
    .orderBy(desc(images.createdAt), desc(images.id))
    .limit(filter.limit)
    .offset(filter.offset);
}

function pageByPrefix(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  const prefix = filter.tagPrefix ?? "";
  return orm
    .select({ id: images.id })
    .from(tags)
    .innerJoin(images, eq(images.id, tags.imageId))
    .where(
      and(
        eq(tags.accountId, accountId),
        gte(tags.name, prefix),
        // Tags are ASCII, so that whatever follows the prefix in one sorts before the last code point.
        lt(tags.name, `${prefix}\u{10ffff}`),
        filter.tagged === undefined ? undefined : eq(images.tagged, filter.tagged),
        timeBounds(filter),
      ),
    )
    .orderBy(desc(images.createdAt), desc(images.id))
    .limit(filter.limit)
    .offset(filter.offset);
}

/** Gives the image this one tag; an image that had the tag loses it. Null when the account has no such image. */
export function setTag(db: Database, accountId: AccountId, imageId: ImageId, name: string): ImageRow | null {
  return db.transaction((tx) => {
    if (findImage(tx, accountId, imageId) === null) return null;
    moveTag(tx, accountId, imageId, name);
    return findImage(tx, accountId, imageId);
  });
}

/** `setTag` inside the transaction of a caller that knows that the image is the account's. */
export function moveTag(orm: Orm, accountId: AccountId, imageId: ImageId, name: string): void {
  const previous = orm
    .delete(tags)
    .where(and(eq(tags.accountId, accountId), eq(tags.name, name)))
    .returning({ imageId: tags.imageId })
    .get();
  if (previous !== undefined) orm.update(images).set({ tagged: false }).where(eq(images.id, previous.imageId)).run();
  orm.delete(tags).where(eq(tags.imageId, imageId)).run();
  orm.insert(tags).values({ accountId, name, imageId }).run();
  orm.update(images).set({ tagged: true }).where(eq(images.id, imageId)).run();
}

/** Takes the image's tag away, when it has one. Null when the account has no such image. */
export function removeTag(db: Database, accountId: AccountId, imageId: ImageId): ImageRow | null {
  return db.transaction((tx) => {
    if (findImage(tx, accountId, imageId) === null) return null;
    tx.delete(tags).where(eq(tags.imageId, imageId)).run();
    tx.update(images).set({ tagged: false }).where(eq(images.id, imageId)).run();
    return findImage(tx, accountId, imageId);
  });
}
