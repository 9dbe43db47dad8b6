import { inArray, lt, sql } from "drizzle-orm";
import type { Database } from "../database.ts";
import { creations } from "./schema.ts";

/** A request may be repeated for this long, in `milliseconds`. */
export const CREATIONS_TTL_MS = 86_400_000;

/** Forgets at most `limit` requests that were made before `beforeMs`. Returns how many. */
export function deleteCreationsBefore(db: Database, beforeMs: number, limit: number): number {
  const { accountId, key, createdAt } = creations;
  const old = db.orm.select({ accountId, key }).from(creations).where(lt(createdAt, beforeMs)).limit(limit);
  return db.orm
    .delete(creations)
    .where(inArray(sql`(${accountId}, ${key})`, old))
    .run().changes;
}
