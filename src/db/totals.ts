import { sql } from "drizzle-orm";
import type { AccountId, ImageId } from "../domain/ids.ts";
import type { Database } from "./database.ts";

/** Totals over whole tables. `bytes` are those that the file system has allocated. */
export interface StoreTotals {
  readonly imageCount: number;
  readonly layerCount: number;
  readonly layerBytes: number;
  /** layers that replace others */
  readonly mergedLayerCount: number;
  readonly mergedLayerBytes: number;
  /** contents that several accounts uploaded count once */
  readonly fileCount: number;
  readonly fileBytes: number;
}

/** In the order of the columns of the statement. */
const NAMES = [
  "imageCount",
  "layerCount",
  "layerBytes",
  "mergedLayerCount",
  "mergedLayerBytes",
  "fileCount",
  "fileBytes",
] as const;

const SUMS = `
  select
    (select count(*) from images),
    (select count(*) from layers),
    (select coalesce(sum(size_bytes), 0) from layers),
    (select count(*) from merged_layers),
    (select coalesce(sum(size_bytes), 0) from merged_layers),
    (select count(distinct sha256) from files),
    (select coalesce(sum(size), 0) from (select max(size_bytes) as size from files group by sha256))
`;

/** Reads whole tables, in a thread. */
export async function storeTotals(db: Database): Promise<StoreTotals> {
  const [row = []] = await db.scans.upkeep({ sql: SUMS, params: [] });
  return Object.fromEntries(NAMES.map((name, index) => [name, Number(row[index])])) as unknown as StoreTotals;
}

/** The stored objects of an account. `bytes` are those that the file system has allocated. */
export interface AccountSpace {
  readonly accountId: AccountId;
  readonly imageCount: number;
  /**
   * of the layers that its images added, each once; one that accounts share, such as a base, counts for each of them, and one
   * that is left of a deleted image for none
   */
  readonly layerBytes: number;
  readonly mergedLayerBytes: number;
  readonly fileCount: number;
  readonly fileBytes: number;
}

const ACCOUNT_SPACES = `
  with
    -- In the order of an index, so that neither time nor memory is taken for duplicates.
    tops(account_id, layer_id) as (select account_id, layer_id from images group by layer_id, account_id),
    sums(account_id, images, layer_bytes, merged_bytes, files, file_bytes) as (
      select account_id, count(*), 0, 0, 0, 0 from images group by account_id
      union all
      select account_id, 0, sum(layers.size_bytes), 0, 0, 0 from tops join layers on layers.id = tops.layer_id group by account_id
      union all
      select account_id, 0, 0, sum(size_bytes), 0, 0 from merged_layers group by account_id
      union all
      select account_id, 0, 0, 0, count(*), sum(size_bytes) from files group by account_id
    )
  select account_id, sum(images), sum(layer_bytes), sum(merged_bytes), sum(files), sum(file_bytes)
  from sums where account_id <> '' group by account_id
  order by sum(layer_bytes) + sum(merged_bytes) + sum(file_bytes) desc, account_id limit ?
`;

/** At most `limit` accounts, those with the most bytes first. Reads whole tables, in a thread. */
export async function accountSpaces(db: Database, limit: number): Promise<AccountSpace[]> {
  const rows = await db.scans.upkeep({ sql: ACCOUNT_SPACES, params: [limit] });
  return rows.map(([accountId, ...sums]) => {
    const [imageCount = 0, layerBytes = 0, mergedLayerBytes = 0, fileCount = 0, fileBytes = 0] = sums.map(Number);
    return { accountId: accountId as AccountId, imageCount, layerBytes, mergedLayerBytes, fileCount, fileBytes };
  });
}

/** An image, with the size that it added to its parent. */
export interface ImageSpace {
  readonly id: ImageId;
  readonly accountId: AccountId;
  /** the tag that was set last; null: none */
  readonly tag: string | null;
  /** `bytes` that the file system has allocated */
  readonly sizeBytes: number;
  readonly createdAt: number;
}

const LARGEST_IMAGES = `
  select images.id, images.account_id, tags.name, images.size_bytes, images.created_at
  from images left join tags on tags.image_id = images.id and tags.shown = 1
  where images.id in (select id from images order by size_bytes desc, id limit ?) and images.account_id <> ''
  order by images.size_bytes desc, images.id
`;

/** At most `limit` images of all accounts, the largest first. Reads a whole table, in a thread. */
export async function largestImages(db: Database, limit: number): Promise<ImageSpace[]> {
  const rows = await db.scans.upkeep({ sql: LARGEST_IMAGES, params: [limit] });
  return rows.map(([id, accountId, tag, sizeBytes, createdAt]) => ({
    id: id as ImageId,
    accountId: accountId as AccountId,
    tag: tag as string | null,
    sizeBytes: Number(sizeBytes),
    createdAt: Number(createdAt),
  }));
}

/** Operations of an account that have not ended. */
export interface LiveWork {
  readonly accountId: AccountId;
  readonly pendingCount: number;
  readonly executingCount: number;
  /** creation time of the oldest PENDING operation; null: none */
  readonly oldestPendingAt: number | null;
}

// To group by account, SQLite would rather read the index of all operations.
const LIVE_WORK = `
  select account_id, sum(status = 'PENDING'), sum(status = 'EXECUTING'), min(case when status = 'PENDING' then created_at end)
  from operations indexed by operations_live
  where finished_at is null and status in ('PENDING', 'EXECUTING') group by account_id
`;

/** The accounts that have operations which have not ended. Runs in a thread: many may wait. */
export async function liveWork(db: Database): Promise<LiveWork[]> {
  const rows = await db.scans.upkeep({ sql: LIVE_WORK, params: [] });
  return rows.map(([accountId, pendingCount, executingCount, oldestPendingAt]) => ({
    accountId: accountId as AccountId,
    pendingCount: Number(pendingCount),
    executingCount: Number(executingCount),
    oldestPendingAt: oldestPendingAt === null ? null : Number(oldestPendingAt),
  }));
}

/** Throws when the database does not answer. */
export function probeDatabase(db: Database): void {
  db.orm.get(sql`select 1 from accounts limit 1`);
}
