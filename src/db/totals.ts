import { sql } from "drizzle-orm";
import type { Database } from "./database.ts";

/** Totals over whole tables. `bytes` are those that the file system has allocated. */
export interface StoreTotals {
  readonly imageCount: number;
  readonly layerCount: number;
  readonly layerBytes: number;
  /** layers that stand in for others */
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
  const [row = []] = await db.scans.all({ sql: SUMS, params: [] });
  return Object.fromEntries(NAMES.map((name, index) => [name, Number(row[index])])) as unknown as StoreTotals;
}

/** Throws when the database does not answer. */
export function probeDatabase(db: Database): void {
  db.orm.get(sql`select 1 from accounts limit 1`);
}
