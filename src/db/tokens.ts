import { and, count, desc, eq, gt, inArray, isNotNull, isNull, lte, or, sql } from "drizzle-orm";
import type { AccountId } from "../domain/ids.ts";
import type { TokenState } from "../domain/scope.ts";
import { ensureAccount } from "./accounts.ts";
import { type Database, statement } from "./database.ts";
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
    ensureAccount(db, token.accountId, token.issuedAt);
    return tx.insert(tokens).values(token).returning().get();
  });
}

const tokenById = statement((orm) =>
  orm
    .select()
    .from(tokens)
    .where(eq(tokens.jti, sql.placeholder("jti")))
    .prepare(),
);

export function getToken(db: Database, jti: string): TokenRow | null {
  return tokenById(db).get({ jti }) ?? null;
}

/**
 * The same for every request: it returns writes of other processes by the next turn of the event loop. The row is shared, so
 * callers must not change it.
 */
export function getTokenCached(db: Database, jti: string): TokenRow | null {
  return db.cached(`token ${jti}`, () => getToken(db, jti));
}

/** The state of a token whose key is known. */
export function tokenState({ revokedAt, expiresAt }: TokenRow, now: number): TokenState {
  if (revokedAt !== null) return "revoked";
  return expiresAt <= now ? "expired" : "valid";
}

export interface TokenFilter {
  readonly accountId?: AccountId | undefined;
  /** result of `tokenState` at the time `now` */
  readonly state?: TokenState | undefined;
  readonly now: number;
  readonly limit?: number;
  readonly offset?: number;
}

/** Newest first. */
export function listTokens(db: Database, filter: TokenFilter): TokenRow[] {
  return db.orm
    .select()
    .from(tokens)
    .where(isWanted(filter))
    .orderBy(desc(tokens.issuedAt), desc(tokens.jti))
    .limit(filter.limit ?? Number.MAX_SAFE_INTEGER)
    .offset(filter.offset ?? 0)
    .all();
}

/** The number of tokens of which `listTokens` returns a part. */
export function countTokens(db: Database, filter: Omit<TokenFilter, "limit" | "offset">): number {
  return db.orm.select({ count: count() }).from(tokens).where(isWanted(filter)).get()?.count ?? 0;
}

function isWanted({ accountId, state, now }: TokenFilter) {
  const ofState = {
    revoked: isNotNull(tokens.revokedAt),
    expired: and(isNull(tokens.revokedAt), lte(tokens.expiresAt, now)),
    valid: and(isNull(tokens.revokedAt), gt(tokens.expiresAt, now)),
  };
  return and(
    accountId === undefined ? undefined : eq(tokens.accountId, accountId),
    state === undefined ? undefined : ofState[state],
  );
}

/**
 * Deletes the rows of an account's ended tokens, except the newest ones. A token without a row stays invalid.
 * @param keptCount number of tokens to keep
 */
export function forgetEndedTokens(db: Database, accountId: AccountId, now: number, keptCount: number): void {
  const ended = db.orm
    .select({ jti: tokens.jti })
    .from(tokens)
    .where(and(eq(tokens.accountId, accountId), or(isNotNull(tokens.revokedAt), lte(tokens.expiresAt, now))))
    .orderBy(desc(tokens.issuedAt), desc(tokens.jti))
    .limit(Number.MAX_SAFE_INTEGER)
    .offset(keptCount);
  db.orm.delete(tokens).where(inArray(tokens.jti, ended)).run();
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
