import { createHash, createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import type { Database } from "../db/database.ts";
import type { TokenRow } from "../db/tokens.ts";
import {
  deleteWebSession,
  getWebSession,
  insertWebSession,
  SESSION_UNUSED_MS_MAX,
  type SessionWithToken,
  useWebSession,
} from "../db/web-sessions.ts";
import { ApiError } from "../domain/errors.ts";
import { isGrant } from "../domain/scope.ts";
import type { Log } from "../log.ts";
import type { TokenKey, TokenKeys } from "../storage/token-keys.ts";
import { type Changed, change, unchanged } from "./change.ts";
import type { Principal } from "./parts.ts";

/** Length of a session's secret, in `bytes`. */
const SECRET_BYTES = 32;
/** A secret in base64url, of which there is exactly one spelling. */
const SECRET = /^[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]$/;
/** Sessions of one token. */
const SESSIONS_COUNT_MAX = 32;
/** The use of a session is recorded at most this often, in `milliseconds`. */
const USE_INTERVAL_MS = 60_000;
/** Prefix of the data that a page key signs, so that a page key cannot be the signature of a token. */
const PAGE_KEY_PREFIX = "page:";

/**
 * The proof of a session: the secret of the cookie, and the key that only pages of the appliance's own origin have. A browser
 * sends the cookie to every port of a host, where others may listen. The key cannot be computed from the cookie.
 */
export interface SessionProof {
  readonly secret: string;
  readonly pageKey: string;
}

/** A session of a person on the page. */
export interface Session {
  readonly principal: Principal;
  /** end of its token, in `milliseconds` since the epoch */
  readonly tokenExpiresAt: number;
}

export interface SessionUseCases {
  /**
   * Begins a session with the rights of a token. It ends with the token, and when it was not used for twelve hours.
   * @param replaced proofs of sessions that the new one replaces; they end
   * @throws ApiError `unauthorized`
   */
  begin(token: string, replaced: readonly SessionProof[]): Promise<Changed<Session & SessionProof>>;
  /** The session; null when there is none, or it has ended. Records the use if the database can be written. */
  find(proof: SessionProof): Promise<Session | null>;
  /** Like `find`, without a record. Never rejects: a session that cannot be checked counts as valid. */
  isValid(proof: SessionProof): Promise<boolean>;
  end(proof: SessionProof): Promise<Changed<void>>;
}

export interface SessionParts {
  readonly db: Database;
  readonly log: Log;
  readonly keys: Pick<TokenKeys, "find">;
  /** result of `tokenVerifier` */
  readonly verifyToken: (token: string) => Promise<Principal | null>;
  /** `milliseconds` since the epoch */
  readonly clock: () => number;
}

export function sessionUseCases(parts: SessionParts): SessionUseCases {
  const { db, log, keys, verifyToken, clock } = parts;
  /** time of the last failure to record a use; null: none */
  let failedAt: number | null = null;
  const record = (id: string, now: number): void => {
    if (failedAt !== null && Math.abs(now - failedAt) < USE_INTERVAL_MS) return;
    try {
      useWebSession(db, id, now);
      failedAt = null;
    } catch (error) {
      // The disk may be full, or another process may write for long. Reading must still work.
      failedAt = now;
      log.warn("cannot record the use of a session of the page", { error });
    }
  };
  const valid = async ({ secret, pageKey }: SessionProof): Promise<SessionWithToken | null> => {
    const row = SECRET.test(secret) ? getWebSession(db, idOf(secret)) : null;
    const now = clock();
    if (row === null || !isCurrent(row, now)) return null;
    const key = await keys.find(row.token.keyId);
    return key !== null && isSame(pageKey, pageKeyOf(secret, key)) ? row : null;
  };
  const end = async (proof: SessionProof): Promise<Changed<void>> => {
    const row = await valid(proof);
    if (row === null) return unchanged(undefined);
    const { principal } = sessionOf(row.token);
    return change(parts, principal, { noun: "session", verb: "end", id: principal.tokenId }, () =>
      deleteWebSession(db, idOf(proof.secret)),
    );
  };
  return {
    async begin(token, replaced) {
      const principal = await verifyToken(token);
      if (principal === null) throw new ApiError("unauthorized", "this token is not valid, or has expired");
      const secret = randomBytes(SECRET_BYTES).toString("base64url");
      const id = idOf(secret);
      for (const proof of replaced) await end(proof);
      const { tokenId } = principal;
      return await change(parts, principal, { noun: "session", verb: "begin", id: tokenId }, async () => {
        insertWebSession(db, { id, tokenId, now: clock() }, SESSIONS_COUNT_MAX);
        const inserted = getWebSession(db, id);
        const key = inserted === null ? null : await keys.find(inserted.token.keyId);
        // Keys may be rotated and tokens revoked at any moment.
        if (inserted === null || key === null) throw new ApiError("unauthorized", "this token is no longer valid");
        return { ...sessionOf(inserted.token), secret, pageKey: pageKeyOf(secret, key) };
      });
    },
    async find(proof) {
      const row = await valid(proof);
      if (row === null) return null;
      const now = clock();
      const { id, lastUsedAt } = row.session;
      // The clock may have been set back.
      if (Math.abs(now - lastUsedAt) >= USE_INTERVAL_MS) record(id, now);
      return sessionOf(row.token);
    },
    isValid: (proof) =>
      valid(proof).then(
        (row) => row !== null,
        () => true,
      ),
    end,
  };
}

function isCurrent({ session, token }: SessionWithToken, now: number): boolean {
  if (token.revokedAt !== null || now >= token.expiresAt) return false;
  return now - session.lastUsedAt < SESSION_UNUSED_MS_MAX;
}

function sessionOf({ accountId, jti, scopes, expiresAt }: TokenRow): Session {
  const grants = new Set<string>(scopes.filter(isGrant));
  return { principal: { accountId, grants, tokenId: jti }, tokenExpiresAt: expiresAt };
}

/** Only this hash is stored, so that a reader of the database, or of a copy of it, cannot use the sessions. */
function idOf(secret: string): string {
  return createHash("sha256").update(secret).digest("hex");
}

function pageKeyOf(secret: string, { secret: key }: TokenKey): string {
  return createHmac("sha256", key).update(PAGE_KEY_PREFIX).update(secret).digest("base64url");
}

function isSame(given: string, expected: string): boolean {
  const [one, other] = [Buffer.from(given, "utf8"), Buffer.from(expected, "utf8")];
  return one.byteLength === other.byteLength && timingSafeEqual(one, other);
}
