import { and, desc, eq, isNull, sql } from "drizzle-orm";
import type { AccountId } from "../domain/ids.ts";
import { ensureAccount } from "./accounts.ts";
import type { Database } from "./database.ts";
import { tokens } from "./schema.ts";

export type TokenRow = typeof tokens.$inferSelect;

export interface NewToken {
  readonly jti: string;
  readonly accountId: AccountId;
  readonly scopes: string[];
  readonly keyId: string;
  /** like all times here, in `milliseconds` since the epoch */
  readonly issuedAt: number;
  readonly expiresAt: number;
}

/** Records an issued token. A token without a row is invalid. */
export function insertToken(db: Database, token: NewToken): TokenRow {
  return db.transaction((tx) => {
    ensureAccount(tx, token.accountId, token.issuedAt);
    return tx.insert(tokens).values(token).returning().get();
  });
}

export function getToken(db: Database, jti: string): TokenRow | null {
  const statement = db.prepared("tokens.get", (orm) =>
    orm
      .select()
      .from(tokens)
      .where(eq(tokens.jti, sql.placeholder("jti")))
      .prepare(),
  );
  return statement.get({ jti }) ?? null;
}

/** Newest first; of one account, or of all accounts. */
export function listTokens(db: Database, accountId?: AccountId): TokenRow[] {
  return db.orm
    .select()
    .from(tokens)
    .where(accountId === undefined ? undefined : eq(tokens.accountId, accountId))
    .orderBy(desc(tokens.issuedAt), desc(tokens.jti))
    .all();
}

/** Revokes a token. False when there is no such token, or when it was revoked before. */
export function revokeToken(db: Database, jti: string, now: number): boolean {
  const { changes } = db.orm
    .update(tokens)
    .set({ revokedAt: now })
    .where(and(eq(tokens.jti, jti), isNull(tokens.revokedAt)))
    .run();
  return changes === 1;
}
