import { desc, eq, inArray, isNotNull, lte, or, sql } from "drizzle-orm";
import { type Database, statement } from "./database.ts";
import { tokens, webSessions } from "./schema.ts";
import type { TokenRow } from "./tokens.ts";

/** A session on the page ends when it was not used for this long, in `milliseconds`. */
export const SESSION_UNUSED_MS_MAX = 43_200_000;

type WebSessionRow = typeof webSessions.$inferSelect;

/** A session, and the token whose rights it has. */
export interface SessionWithToken {
  readonly session: WebSessionRow;
  readonly token: TokenRow;
}

/**
 * Records a session.
 * @param countMax largest number of sessions of the token: beyond that, those unused longest are removed
 */
export function insertWebSession(
  db: Database,
  { id, tokenId, now }: { readonly id: string; readonly tokenId: string; readonly now: number },
  countMax: number,
): void {
  db.transaction((tx) => {
    const others = tx
      .select({ id: webSessions.id })
      .from(webSessions)
      .where(eq(webSessions.tokenId, tokenId))
      .orderBy(desc(webSessions.lastUsedAt), desc(webSessions.createdAt))
      // SQLite has no OFFSET without a LIMIT.
      .limit(Number.MAX_SAFE_INTEGER)
      .offset(countMax - 1);
    tx.delete(webSessions).where(inArray(webSessions.id, others)).run();
    tx.insert(webSessions).values({ id, tokenId, createdAt: now, lastUsedAt: now }).run();
  });
}

const sessionById = statement((orm) =>
  orm
    .select({ session: webSessions, token: tokens })
    .from(webSessions)
    .innerJoin(tokens, eq(tokens.jti, webSessions.tokenId))
    .where(eq(webSessions.id, sql.placeholder("id")))
    .prepare(),
);

export function getWebSession(db: Database, id: string): SessionWithToken | null {
  return sessionById(db).get({ id }) ?? null;
}

/** Records a use. It is not synced: after a power failure, the session counts as unused for a little longer. */
export function useWebSession(db: Database, id: string, now: number): void {
  db.withoutSync(() => db.orm.update(webSessions).set({ lastUsedAt: now }).where(eq(webSessions.id, id)).run());
}

export function deleteWebSession(db: Database, id: string): void {
  db.orm.delete(webSessions).where(eq(webSessions.id, id)).run();
}

/** Removes at most `limit` sessions that were last used before `unusedSince`, or whose token has ended. Returns how many. */
export function deleteEndedWebSessions(
  db: Database,
  { unusedSince, now }: { readonly unusedSince: number; readonly now: number },
  limit: number,
): number {
  const ended = db.orm
    .select({ id: webSessions.id })
    .from(webSessions)
    .innerJoin(tokens, eq(tokens.jti, webSessions.tokenId))
    .where(or(lte(webSessions.lastUsedAt, unusedSince), lte(tokens.expiresAt, now), isNotNull(tokens.revokedAt)))
    .limit(limit);
  return db.orm.delete(webSessions).where(inArray(webSessions.id, ended)).run().changes;
}
