import { and, desc, eq, exists, getTableColumns, gte, lt, lte, sql } from "drizzle-orm";
import type { AccountId, ImageId } from "../domain/ids.ts";
import type { ImageReference } from "../domain/image.ts";
import { type Database, isOneOf, type Orm } from "./database.ts";
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

/** With more tags than these that begin alike, images are looked through in a thread instead of being put in order. */
const TAGS_AT_ONCE_COUNT_MAX = 1000;

/** Newest first, then by id; a page past the end is empty. */
export function listImages(db: Database, accountId: AccountId, filter: ImageFilter): ImageRow[] {
  if (isContradiction(filter)) return [];
  const page = imagePage(db.orm, accountId, filter).as("page");
  return db.orm
    .select(imageColumns)
    .from(page)
    .innerJoin(images, eq(images.id, page.id))
    .leftJoin(tags, eq(tags.imageId, images.id))
    .orderBy(desc(images.createdAt), desc(images.id))
    .all();
}

/** The same for any offset and any prefix: what takes long is done in a thread. */
export async function listImagesFar(db: Database, accountId: AccountId, filter: ImageFilter): Promise<ImageRow[]> {
  if (isContradiction(filter)) return [];
  const { tagPrefix, offset } = filter;
  const isBroad = Boolean(tagPrefix) && haveManyTags(db, accountId, tagPrefix ?? "");
  if (!isBroad && offset < FAR_OFFSET_MIN) return listImages(db, accountId, filter);
  const page = isBroad ? pageByTimeOfPrefix : imagePage;
  const ids = await db.scans.ids<ImageId>(page(db.orm, accountId, filter));
  return db.orm
    .select(imageColumns)
    .from(images)
    .leftJoin(tags, eq(tags.imageId, images.id))
    .where(isOneOf(images.id, ids))
    .orderBy(desc(images.createdAt), desc(images.id))
    .all();
}

/** An image without a tag has none that begins with anything. */
function isContradiction({ tagged, tagPrefix }: ImageFilter): boolean {
  return tagged === false && tagPrefix !== undefined;
}

function haveManyTags(db: Database, accountId: AccountId, prefix: string): boolean {
  const some = db.orm
    .select({ one: sql`1` })
    .from(tags)
    .where(and(eq(tags.accountId, accountId), beginsWith(prefix)))
    .limit(TAGS_AT_ONCE_COUNT_MAX + 1)
    .as("page");
  const [row] = db.orm.select({ count: sql<number>`count(*)` }).from(some).all();
  return (row?.count ?? 0) > TAGS_AT_ONCE_COUNT_MAX;
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

/** Tags are ASCII, so that whatever follows the prefix in one sorts before the last code point. */
function beginsWith(prefix: string) {
  return and(gte(tags.name, prefix), lt(tags.name, `${prefix}\u{10ffff}`));
}

/** Found in a covering index, so that a large offset does not read the rows that it skips. */
function pageByTime(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  // Every tag begins with the empty prefix, and an image without a tag does not.
  const tagged = filter.tagged ?? (filter.tagPrefix === "" ? true : undefined);
  return orm
    .select({ id: images.id })
    .from(images)
    .where(
      and(
        eq(images.accountId, accountId),
        tagged === undefined ? undefined : eq(images.tagged, tagged),
        timeBounds(filter),
      ),
    )
    .orderBy(desc(images.createdAt), desc(images.id))
    .limit(filter.limit)
    .offset(filter.offset);
}

/** Reads every tag that begins so, and puts what they are on in order. */
function pageByPrefix(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  return orm
    .select({ id: images.id })
    .from(tags)
    .innerJoin(images, eq(images.id, tags.imageId))
    .where(and(eq(tags.accountId, accountId), beginsWith(filter.tagPrefix ?? ""), timeBounds(filter)))
    .orderBy(desc(images.createdAt), desc(images.id))
    .limit(filter.limit)
    .offset(filter.offset);
}

/** The same page, found by reading the images in their order until enough of them have such a tag. */
function pageByTimeOfPrefix(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  const prefix = filter.tagPrefix ?? "";
  const has = orm
    .select({ one: sql`1` })
    .from(tags)
    .where(and(eq(tags.imageId, images.id), beginsWith(prefix)));
  return orm
    .select({ id: images.id })
    .from(images)
    .where(and(eq(images.accountId, accountId), eq(images.tagged, true), exists(has), timeBounds(filter)))
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
