import { sql } from "drizzle-orm";
import type { AccountId } from "../domain/ids.ts";
import { type Database, statement } from "./database.ts";
import { accounts } from "./schema.ts";

const insertAccount = statement((orm) =>
  orm
    .insert(accounts)
    .values({ id: sql.placeholder("id"), createdAt: sql.placeholder("now") })
    .onConflictDoNothing()
    .prepare(),
);

/** Adds the account if it is new. An account begins with its first token, file or operation. */
export function ensureAccount(db: Database, id: AccountId, now: number): void {
  insertAccount(db).run({ id, now });
}
