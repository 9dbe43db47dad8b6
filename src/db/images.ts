import { and, desc, eq, exists, getTableColumns, gte, lt, lte, sql } from "drizzle-orm";
import type { AccountId, ImageId } from "../domain/ids.ts";
import type { ImageReference } from "../domain/image.ts";
import { type Database, isOneOf, type Orm } from "./database.ts";
import { LARGE_OFFSET_MIN, type ListWindow } from "./scans.ts";
import { images, tags } from "./schema.ts";

/** An image and its tag. */
export type ImageRow = typeof images.$inferSelect & { readonly tag: string | null };

export interface ImageFilter extends ListWindow {
  /** only images with a tag, or only those without */
  readonly tagged?: boolean | undefined;
  readonly tagPrefix?: string | undefined;
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

/** Finds an image by its uuid or by its tag; null when the account has none. */
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

/**
 * When more tags than this match a prefix, the scan thread walks the images in their order. Otherwise the images of all
 * matching tags are sorted.
 */
const SORTED_TAGS_COUNT_MAX = 1000;

/** Newest first, then by id; a page past the end is empty. Blocks the event loop: only for small offsets and prefixes. */
export function listImagesSync(db: Database, accountId: AccountId, filter: ImageFilter): ImageRow[] {
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

/** Newest first, then by id; a page past the end is empty. Runs long queries in the scan thread. */
export async function listImages(db: Database, accountId: AccountId, filter: ImageFilter): Promise<ImageRow[]> {
  if (isContradiction(filter)) return [];
  const { tagPrefix, offset } = filter;
  const isBroad = Boolean(tagPrefix) && haveManyTags(db, accountId, tagPrefix ?? "");
  if (!isBroad && offset < LARGE_OFFSET_MIN) return listImagesSync(db, accountId, filter);
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

/** An untagged image has no tag that could match a prefix. */
function isContradiction({ tagged, tagPrefix }: ImageFilter): boolean {
  return tagged === false && tagPrefix !== undefined;
}

function haveManyTags(db: Database, accountId: AccountId, prefix: string): boolean {
  const some = db.orm
    .select({ one: sql`1` })
    .from(tags)
    .where(and(eq(tags.accountId, accountId), beginsWith(prefix)))
    .limit(SORTED_TAGS_COUNT_MAX + 1)
    .as("page");
  const [row] = db.orm.select({ count: sql<number>`count(*)` }).from(some).all();
  return (row?.count ?? 0) > SORTED_TAGS_COUNT_MAX;
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

/** Tags are ASCII, so every tag with the prefix sorts before the prefix followed by the last code point. */
function beginsWith(prefix: string) {
  return and(gte(tags.name, prefix), lt(tags.name, `${prefix}\u{10ffff}`));
}

/** Reads only a covering index, so that a large offset does not read the skipped rows. */
function pageByTime(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  // The empty prefix matches every tag, but not an image without a tag.
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

/** Reads all tags with the prefix, and sorts their images. */
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

/** The same page, found by reading images in their order until enough of them have a matching tag. */
function pageByTimeOfPrefix(orm: Orm, accountId: AccountId, filter: ImageFilter) {
  const prefix = filter.tagPrefix ?? "";
  const hasMatchingTag = orm
    .select({ one: sql`1` })
    .from(tags)
    .where(and(eq(tags.imageId, images.id), beginsWith(prefix)));
  return orm
    .select({ id: images.id })
    .from(images)
    .where(and(eq(images.accountId, accountId), eq(images.tagged, true), exists(hasMatchingTag), timeBounds(filter)))
    .orderBy(desc(images.createdAt), desc(images.id))
    .limit(filter.limit)
    .offset(filter.offset);
}

/** Gives the image this tag, and takes it from the image that had it. Null when the account has no such image. */
export function setTag(db: Database, accountId: AccountId, imageId: ImageId, name: string): ImageRow | null {
  return db.transaction((tx) => {
    if (findImage(tx, accountId, imageId) === null) return null;
    moveTag(tx, accountId, imageId, name);
    return findImage(tx, accountId, imageId);
  });
}

/** `setTag` for a transaction whose caller has checked that the image belongs to the account. */
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

/** Removes the image's tag, if it has one. Null when the account has no such image. */
export function removeTag(db: Database, accountId: AccountId, imageId: ImageId): ImageRow | null {
  return db.transaction((tx) => {
    if (findImage(tx, accountId, imageId) === null) return null;
    tx.delete(tags).where(eq(tags.imageId, imageId)).run();
    tx.update(images).set({ tagged: false }).where(eq(images.id, imageId)).run();
    return findImage(tx, accountId, imageId);
  });
}
