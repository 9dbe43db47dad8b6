import type { AccountId } from "../domain/ids.ts";
import type { Orm } from "./drizzle-client.ts";
import { accounts } from "./schema.ts";

/** Adds the account if it is new. Accounts come into being with their first token, file or operation. */
export function ensureAccount(orm: Orm, id: AccountId, now: number): void {
  orm.insert(accounts).values({ id, createdAt: now }).onConflictDoNothing().run();
}
