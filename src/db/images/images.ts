import { and, desc, eq, exists, getTableColumns, gte, lt, lte, sql } from "drizzle-orm";
import type { AccountId, ImageId, LayerId } from "../../domain/ids.ts";
import type { ImageReference } from "../../domain/image.ts";
import type { ImageDefaults } from "../../domain/image-defaults.ts";
import { type Database, isOneOf, statement } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { LARGE_OFFSET_MIN, type ListWindow } from "../scans/scans.ts";
import { images, tags } from "../schema.ts";

/** An image without its defaults for commands, and the tag that it shows: the one that was set last. */
export type ImageRow = Omit<typeof images.$inferSelect, "variables" | "cwd"> & { readonly tag: string | null };

export interface ImageFilter extends ListWindow {
  /** only images with a tag, or only those without */
  readonly tagged?: boolean | undefined;
  readonly tagPrefix?: string | undefined;
}

// Variables can be long: a listing must not read them.
const { variables: _variables, cwd: _cwd, ...ownColumns } = getTableColumns(images);
export const imageColumns = { ...ownColumns, tag: tags.name };

/** The tag that an image shows. SQLite uses the index of these tags only for a condition without a parameter. */
export const isShown = sql`${tags.isShown} = 1`;
/** Joins an image with the tag that it shows. */
export const hasShownTag = and(eq(tags.imageId, images.id), isShown);

/**
 * The account to which an image belongs from its deletion until the last row that names it has changed. No caller has this
 * account, so that no caller finds the image.
 */
export const REMOVED = "" as AccountId;

const idsOfRemoved = statement((orm) =>
  orm.select({ id: images.id }).from(images).where(eq(images.accountId, REMOVED)).prepare(),
);

/** Deleted images whose rows are still there, so that other rows may name them. The set is shared. */
export function imagesBeingRemoved(db: Database): ReadonlySet<ImageId> {
  return db.cached(
    "images being removed",
    () =>
      new Set(
        idsOfRemoved(db)
          .all()
          .map(({ id }) => id),
      ),
  );
}

function selectImages(orm: Orm) {
  return orm.select(imageColumns).from(images).leftJoin(tags, hasShownTag);
}

/** `getImage` inside a transaction. */
export function findImage(orm: Orm, accountId: AccountId, id: ImageId): ImageRow | null {
  return (
    selectImages(orm)
      .where(and(eq(images.id, id), eq(images.accountId, accountId)))
      .get() ?? null
  );
}

const rowById = statement((orm) =>
  selectImages(orm)
    .where(eq(images.id, sql.placeholder("id")))
    .prepare(),
);

/** The image, if the account has it. The row is shared, so callers must not change it. */
export function getImage(db: Database, accountId: AccountId, id: ImageId): ImageRow | null {
  // One request reads it several times, and a client sends many for one image.
  const row = db.cached(`image ${id}`, () => rowById(db).get({ id }) ?? null);
  return row?.accountId === accountId ? row : null;
}

/** Sizes of those of the images that the account has, in `bytes`. */
export function imageSizes(db: Database, accountId: AccountId, ids: readonly ImageId[]): ReadonlyMap<ImageId, number> {
  if (ids.length === 0) return new Map();
  const rows = db.orm
    .select({ id: images.id, sizeBytes: images.sizeBytes })
    .from(images)
    .where(and(isOneOf(images.id, ids), eq(images.accountId, accountId)))
    .all();
  return new Map(rows.map(({ id, sizeBytes }) => [id, sizeBytes]));
}

/** Finds an image by its uuid or by any of its tags; null when the account has none. */
export function resolveImage(db: Database, accountId: AccountId, reference: ImageReference): ImageRow | null {
  if ("uuid" in reference) return getImage(db, accountId, reference.uuid);
  const row = db.orm
    .select({ id: tags.imageId })
    .from(tags)
    .where(and(eq(tags.accountId, accountId), eq(tags.name, reference.tag)))
    .get();
  return row === undefined ? null : getImage(db, accountId, row.id);
}

const defaultsById = statement((orm) =>
  orm
    .select({ variables: images.variables, cwd: images.cwd })
    .from(images)
    .where(eq(images.id, sql.placeholder("id")))
    .prepare(),
);

/** The defaults of an image, which must belong to the account of the caller. */
export function imageDefaults(db: Database, id: ImageId): ImageDefaults {
  const row = defaultsById(db).get({ id });
  return { variables: row?.variables ?? {}, cwd: row?.cwd ?? null };
}

/** Images of one account and base among which an import is searched. Most accounts have one or a few of a base. */
const TWINS_COUNT_MAX = 1000;

/**
 * The first image of the account that an import of this base has made; null when there is none. One that was made before
 * imports stored variables does not count, and neither does one with more than TWINS_COUNT_MAX older images of the account.
 */
export function findImport(
  orm: Orm,
  accountId: AccountId,
  base: { readonly layerId: LayerId; readonly digest: string },
): ImageId | null {
  const { id, digest, layerId, variables } = images;
  const isKnown = sql<number>`${variables} is not null`.as("is_known");
  const first = orm
    .select({ id, digest, isKnown })
    .from(images)
    .where(and(eq(layerId, base.layerId), eq(images.accountId, accountId)))
    .orderBy(sql`images.rowid`)
    .limit(TWINS_COUNT_MAX)
    .as("twin");
  const twin = orm
    .select({ id: first.id })
    .from(first)
    .where(and(eq(first.digest, base.digest), eq(first.isKnown, 1)))
    .limit(1)
    .get();
  return twin?.id ?? null;
}

/**
 * When more tags than this match a prefix, the scan thread walks the images in their order. Otherwise the images of all
 * matching tags are sorted.
 */
const SORTED_TAGS_COUNT_MAX = 1000;

/**
 * Newest first, then by id; a page past the end is empty. An image has one row, and only the tag that it shows counts.
 * Blocks the event loop: only for small offsets and prefixes.
 */
export function listImagesSync(db: Database, accountId: AccountId, filter: ImageFilter): ImageRow[] {
  if (isContradiction(filter)) return [];
  const page = imagePage(db.orm, accountId, filter).as("page");
  return db.orm
    .select(imageColumns)
    .from(page)
    .innerJoin(images, eq(images.id, page.id))
    .leftJoin(tags, hasShownTag)
    .orderBy(desc(images.createdAt), desc(images.id))
    .all();
}

/** Newest first, then by id; a page past the end is empty. Runs long queries in the scan thread. */
export async function listImages(db: Database, accountId: AccountId, filter: ImageFilter): Promise<ImageRow[]> {
  if (isContradiction(filter)) return [];
  const { tagPrefix, offset, signal } = filter;
  const isBroad = Boolean(tagPrefix) && hasManyTags(db, accountId, tagPrefix ?? "");
  if (!isBroad && offset < LARGE_OFFSET_MIN) return listImagesSync(db, accountId, filter);
  const page = isBroad ? pageByTimeOfPrefix : imagePage;
  const ids = await db.scans.ids<ImageId>(page(db.orm, accountId, filter), { accountId, signal });
  return db.orm
    .select(imageColumns)
    .from(images)
    .leftJoin(tags, hasShownTag)
    .where(isOneOf(images.id, ids))
    .orderBy(desc(images.createdAt), desc(images.id))
    .all();
}

/** An untagged image has no tag that could match a prefix. */
function isContradiction({ tagged, tagPrefix }: ImageFilter): boolean {
  return tagged === false && tagPrefix !== undefined;
}

export function hasManyTags(db: Database, accountId: AccountId, prefix: string): boolean {
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

export function timeBounds(filter: ListWindow) {
  return and(
    filter.sinceMs === undefined ? undefined : gte(images.createdAt, filter.sinceMs),
    filter.untilMs === undefined ? undefined : lte(images.createdAt, filter.untilMs),
  );
}

/** Tags are ASCII, so every tag with the prefix sorts before the prefix followed by the last code point. */
export function beginsWith(prefix: string) {
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
    .where(and(eq(tags.accountId, accountId), beginsWith(filter.tagPrefix ?? ""), isShown, timeBounds(filter)))
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
    .where(and(hasShownTag, beginsWith(prefix)));
  return orm
    .select({ id: images.id })
    .from(images)
    .where(and(eq(images.accountId, accountId), eq(images.tagged, true), exists(hasMatchingTag), timeBounds(filter)))
    .orderBy(desc(images.createdAt), desc(images.id))
    .limit(filter.limit)
    .offset(filter.offset);
}
