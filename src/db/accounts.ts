import type { AccountId } from "../domain/ids.ts";
import type { Orm } from "./database.ts";
import { accounts } from "./schema.ts";

/** An account exists from its first token, file or operation on. */
export function ensureAccount(orm: Orm, id: AccountId, now: number): void {
  orm.insert(accounts).values({ id, createdAt: now }).onConflictDoNothing().run();
}
