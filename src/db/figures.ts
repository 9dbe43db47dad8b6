import { sql } from "drizzle-orm";
import type { Database } from "./database.ts";

/** Sums over whole tables, for the figures that are watched. `bytes` are those that the file system has allocated. */
export interface StoreFigures {
  readonly imageCount: number;
  readonly layerCount: number;
  readonly layerBytes: number;
  /** contents that several accounts uploaded count once */
  readonly fileCount: number;
  readonly fileBytes: number;
}

export function storeFigures(db: Database): StoreFigures {
  const row = db.orm.get<Record<string, number>>(sql`
    select
      (select count(*) from images) as imageCount,
      (select count(*) from layers) as layerCount,
      (select coalesce(sum(size_bytes), 0) from layers) as layerBytes,
      (select count(distinct sha256) from files) as fileCount,
      (select coalesce(sum(size), 0) from (select max(size_bytes) as size from files group by sha256)) as fileBytes
  `);
  const of = (name: string): number => row[name] ?? 0;
  return {
    imageCount: of("imageCount"),
    layerCount: of("layerCount"),
    layerBytes: of("layerBytes"),
    fileCount: of("fileCount"),
    fileBytes: of("fileBytes"),
  };
}

/** Throws when the database does not answer. */
export function probeDatabase(db: Database): void {
  db.orm.get(sql`select 1 from accounts limit 1`);
}
