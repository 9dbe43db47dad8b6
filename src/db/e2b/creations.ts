import { and, eq, inArray, lt, sql } from "drizzle-orm";
import type { AccountId } from "../../domain/ids.ts";
import type { Database } from "../database.ts";
import { creations } from "./schema.ts";

/** A request may be repeated for this long, in `milliseconds`. */
export const CREATIONS_TTL_MS = 86_400_000;

export type CreationRow = typeof creations.$inferSelect;

/** The request of an account with that key, if it was made in time; otherwise null. */
export function findCreation(db: Database, accountId: AccountId, key: string, now: number): CreationRow | null {
  const isIt = and(eq(creations.accountId, accountId), eq(creations.key, key));
  const row = db.orm.select().from(creations).where(isIt).get();
  return row === undefined || row.createdAt < now - CREATIONS_TTL_MS ? null : row;
}

/** Records a request in place of an earlier one with its key. To be called in the transaction that inserts the sandbox. */
export function insertCreation(db: Database, row: CreationRow): void {
  const { bodyHash, sandboxId, createdAt } = row;
  db.orm
    .insert(creations)
    .values(row)
    .onConflictDoUpdate({ target: [creations.accountId, creations.key], set: { bodyHash, sandboxId, createdAt } })
    .run();
}

/** Forgets the request that made a sandbox: a repeated one makes another. */
export function deleteCreation(
  db: Database,
  { accountId, key, sandboxId }: Omit<CreationRow, "createdAt" | "bodyHash">,
) {
  const isIt = and(eq(creations.accountId, accountId), eq(creations.key, key), eq(creations.sandboxId, sandboxId));
  db.orm.delete(creations).where(isIt).run();
}

/** Forgets at most `limit` requests that were made before `beforeMs`. Returns how many. */
export function deleteCreationsBefore(db: Database, beforeMs: number, limit: number): number {
  const { accountId, key, createdAt } = creations;
  const old = db.orm.select({ accountId, key }).from(creations).where(lt(createdAt, beforeMs)).limit(limit);
  return db.orm
    .delete(creations)
    .where(inArray(sql`(${accountId}, ${key})`, old))
    .run().changes;
}
