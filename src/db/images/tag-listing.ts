import { and, desc, eq, gt, isNotNull, isNull, ne, type SQL, sql } from "drizzle-orm";
import type { AccountId, ImageId } from "../../domain/ids.ts";
import { type Database, isOneOf } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { type Asker, LARGE_OFFSET_MIN, type ListWindow } from "../scans/scans.ts";
import { images, tags } from "../schema.ts";
import { beginsWith, hasManyTags, type ImageRow, imageColumns, timeBounds } from "./images.ts";

/** How an image was made: by an import, or by a run or a checkpoint of one. */
export type ImageOriginKind = "import" | "run";

export interface TagFilter extends ListWindow {
  /** only images with a tag, or only those without */
  readonly tagged?: boolean | undefined;
  /** only tags that begin with this */
  readonly tagPrefix?: string | undefined;
  readonly id?: ImageId | undefined;
  readonly origin?: ImageOriginKind | undefined;
}

/** One row of a listing: an image, and one of its tags by its number; null for an image without a tag. */
interface RowKey {
  readonly id: ImageId;
  readonly tagNumber: number | null;
}

/**
 * Lists an image once for each of its tags, and once if it has none. The tag that equals the prefix comes first, then the
 * newest images, with their latest tags first. Runs long queries in the scan thread.
 */
export async function listImagesPerTag(db: Database, accountId: AccountId, filter: TagFilter): Promise<ImageRow[]> {
  const { tagPrefix, tagged, limit, offset, signal } = filter;
  const asker = { accountId, signal };
  if (!tagPrefix) {
    const withTag = tagged ?? (tagPrefix === "" ? true : undefined);
    const page = pageByTime(db.orm, accountId, { ...filter, tagged: withTag });
    return rowsOf(db, await keysOf(db, page, isLong(filter) ? asker : null));
  }
  if (tagged === false) return [];
  const exact = exactTag(db.orm, accountId, { ...filter, tagPrefix });
  const first = offset === 0 ? exact.slice(0, limit) : [];
  const rest = { ...filter, limit: limit - first.length, offset: Math.max(0, offset - exact.length) };
  const isBroad = hasManyTags(db, accountId, tagPrefix);
  const pageOf = isBroad ? pageByTimeOfPrefix : pageByPrefix;
  const others = pageOf(db.orm, accountId, { ...rest, tagPrefix });
  return rowsOf(db, [...first, ...(await keysOf(db, others, isBroad || isLong(rest) ? asker : null))]);
}

/** The origin of an image is in no index. */
function isLong({ offset, origin }: TagFilter): boolean {
  return offset >= LARGE_OFFSET_MIN || origin !== undefined;
}

const tagNumber = sql<number | null>`tags.rowid`;
const key = { id: images.id, tagNumber };
/** Newest images first, then by id; the latest tags of an image first. */
const order = [desc(images.createdAt), desc(images.id), desc(tags.setAt), desc(sql`tags.rowid`)];

function conditionOf(accountId: AccountId, filter: TagFilter): SQL | undefined {
  const { id, origin, tagged } = filter;
  return and(
    eq(images.accountId, accountId),
    id === undefined ? undefined : eq(images.id, id),
    tagged === undefined ? undefined : eq(images.tagged, tagged),
    // Only an import has a digest.
    origin === undefined ? undefined : origin === "import" ? isNotNull(images.digest) : isNull(images.digest),
    timeBounds(filter),
  );
}

function pageByTime(orm: Orm, accountId: AccountId, filter: TagFilter) {
  return orm
    .select(key)
    .from(images)
    .leftJoin(tags, eq(tags.imageId, images.id))
    .where(conditionOf(accountId, filter))
    .orderBy(...order)
    .limit(filter.limit)
    .offset(filter.offset);
}

type PrefixFilter = TagFilter & { readonly tagPrefix: string };

/** The row of the tag that equals the prefix, if it is in the listing. */
function exactTag(orm: Orm, accountId: AccountId, { tagPrefix, ...filter }: PrefixFilter): RowKey[] {
  return orm
    .select(key)
    .from(tags)
    .innerJoin(images, eq(images.id, tags.imageId))
    .where(and(eq(tags.accountId, accountId), eq(tags.name, tagPrefix), conditionOf(accountId, filter)))
    .all();
}

/** Reads all tags that are longer than the prefix and begin with it, and sorts them. */
function pageByPrefix(orm: Orm, accountId: AccountId, { tagPrefix, limit, offset, ...filter }: PrefixFilter) {
  const isLonger = and(eq(tags.accountId, accountId), gt(tags.name, tagPrefix), beginsWith(tagPrefix));
  return orm
    .select(key)
    .from(tags)
    .innerJoin(images, eq(images.id, tags.imageId))
    .where(and(isLonger, conditionOf(accountId, { ...filter, limit, offset })))
    .orderBy(...order)
    .limit(limit)
    .offset(offset);
}

/** The same page, found by reading images in their order until enough matching tags are found. */
function pageByTimeOfPrefix(orm: Orm, accountId: AccountId, { tagPrefix, limit, offset, ...filter }: PrefixFilter) {
  return orm
    .select(key)
    .from(images)
    .innerJoin(tags, and(eq(tags.imageId, images.id), ne(tags.name, tagPrefix), beginsWith(tagPrefix)))
    .where(conditionOf(accountId, { ...filter, limit, offset, tagged: true }))
    .orderBy(...order)
    .limit(limit)
    .offset(offset);
}

interface KeyQuery {
  toSQL(): { readonly sql: string; readonly params: readonly unknown[] };
  all(): RowKey[];
}

/** @param asker null: the query is short */
async function keysOf(db: Database, query: KeyQuery, asker: Asker | null): Promise<RowKey[]> {
  if (asker === null) return query.all();
  const rows = await db.scans.all(query.toSQL(), asker);
  return rows.map(([id, number]) => ({ id: id as ImageId, tagNumber: number as number | null }));
}

/** The rows in the order of `keys`, without rows that were deleted meanwhile: their number may belong to another tag then. */
function rowsOf(db: Database, keys: readonly RowKey[]): ImageRow[] {
  const { tag: _tag, ...columns } = imageColumns;
  const ids = [...new Set(keys.map(({ id }) => id))];
  const imageRows = db.orm.select(columns).from(images).where(isOneOf(images.id, ids)).all();
  const byId = new Map(imageRows.map((row) => [row.id, row]));
  const numbers = keys.flatMap(({ tagNumber: number }) => number ?? []);
  const named = db.orm
    .select({ number: sql<number>`tags.rowid`, id: tags.imageId, name: tags.name })
    .from(tags)
    .where(sql`tags.rowid in (select value from json_each(${JSON.stringify(numbers)}))`)
    .all();
  const names = new Map(named.map((tag) => [tag.number, tag]));
  return keys.flatMap(({ id, tagNumber: number }): ImageRow[] => {
    const row = byId.get(id);
    if (row === undefined) return [];
    if (number === null) return [{ ...row, tag: null }];
    const tag = names.get(number);
    return tag?.id === id ? [{ ...row, tag: tag.name }] : [];
  });
}
