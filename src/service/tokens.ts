import { jwt } from "@elysiajs/jwt";
import { decodeProtectedHeader } from "jose";
import type { Database } from "../db/database.ts";
import { getTokenCached, insertToken, type TokenRow } from "../db/tokens.ts";
import { ApiError } from "../domain/errors.ts";
import { ACCOUNT_PATTERN, type AccountId } from "../domain/ids.ts";
import { type Grant, isGrant } from "../domain/scope.ts";
import type { TokenKey, TokenKeys } from "../storage/token-keys.ts";
import type { Principal } from "./parts.ts";

const TOKEN_ISSUER = "coppice";
/** Longer tokens are refused without being parsed, in `bytes`. */
const TOKEN_BYTES_MAX = 4096;
/** The only accepted algorithm, regardless of a token's header. */
const ALGORITHM = "HS256";
/** Tolerance for a clock that was set back after a token was issued, in `seconds`. */
const CLOCK_SKEW_SECONDS = 5;
const TOKEN_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const accountExpression = new RegExp(ACCOUNT_PATTERN);

export interface TokenRequest {
  readonly account: string;
  readonly scopes: readonly string[];
  /** lifetime in `milliseconds`, at least a second */
  readonly ttlMs: number;
  /** `milliseconds` since the epoch */
  readonly now: number;
}

export interface IssuedToken {
  /** the secret itself, which is not stored */
  readonly token: string;
  readonly row: TokenRow;
}

/**
 * Signs a token and inserts its row; a token without a row is not valid.
 * @throws ApiError `validation_error` when the account, a scope or the lifetime is not allowed
 */
export async function issueToken(db: Database, keys: TokenKeys, request: TokenRequest): Promise<IssuedToken> {
  const { account, now } = request;
  const scopes = [...new Set(request.scopes)];
  if (!accountExpression.test(account)) {
    throw new ApiError("validation_error", `account must match ${ACCOUNT_PATTERN}`, { field: "account" });
  }
  const unknown = scopes.find((scope) => !isGrant(scope));
  if (unknown !== undefined || scopes.length === 0) {
    throw new ApiError("validation_error", `unknown scope ${unknown ?? "(none)"}`, { field: "scope" });
  }
  const issuedSeconds = Math.floor(now / 1000);
  const expiresSeconds = Math.floor((now + request.ttlMs) / 1000);
  if (!Number.isSafeInteger(expiresSeconds) || request.ttlMs < 1000) {
    throw new ApiError("validation_error", "ttl must be at least one second", { field: "ttl" });
  }
  const key = await keys.signing();
  const jti = Bun.randomUUIDv7();
  const token = await codec(key).sign({
    iss: TOKEN_ISSUER,
    sub: account,
    jti,
    scope: scopes.join(" "),
    exp: expiresSeconds,
  });
  const row = insertToken(db, {
    jti,
    accountId: account as AccountId,
    scopes,
    keyId: key.id,
    issuedAt: issuedSeconds * 1000,
    expiresAt: expiresSeconds * 1000,
  });
  return { token, row };
}

/** A token whose signature and claims are verified; cached for later requests. */
interface VerifiedToken {
  readonly principal: Principal;
  readonly keyId: string;
  readonly expiresSeconds: number;
}

/** Size of the cache of verified tokens. */
const VERIFIED_COUNT_MAX = 1024;

/** Makes a function that returns a token's principal, or null when this appliance did not issue it, or it is not valid now. */
export function tokenVerifier(
  db: Database,
  keys: TokenKeys,
  clock: () => number,
): (token: string) => Promise<Principal | null> {
  const verified = new Map<string, VerifiedToken>();
  return async (token) => {
    if (token.length > TOKEN_BYTES_MAX) return null;
    const now = clock();
    const cached = verified.get(token) ?? (await verify(token, keys, now));
    if (cached === null || !(await isGood(cached, db, keys, now))) {
      verified.delete(token);
      return null;
    }
    // Inserted again as the last one, so that the least recently used token is dropped.
    verified.delete(token);
    verified.set(token, cached);
    if (verified.size > VERIFIED_COUNT_MAX) verified.delete(verified.keys().next().value ?? "");
    return cached.principal;
  };
}

/** Checks the parts that can change between two requests with the same token: the time, its key and its row. */
async function isGood(cached: VerifiedToken, db: Database, keys: TokenKeys, now: number): Promise<boolean> {
  // Without tolerance: the same clock issued the token, and `token list` calls it expired from here on.
  if (now / 1000 >= cached.expiresSeconds) return false;
  if ((await keys.find(cached.keyId)) === null) return false;
  const row = getTokenCached(db, cached.principal.tokenId);
  return row !== null && row.revokedAt === null && row.accountId === cached.principal.accountId;
}

/** Signs and verifies with one key. Elysia's plugin has both functions in its decorator, usable without a request. */
function codec({ id, secret }: TokenKey) {
  return jwt({ name: "jwt", secret, alg: ALGORITHM, kid: id }).decorator.jwt;
}

async function verify(token: string, keys: TokenKeys, now: number): Promise<VerifiedToken | null> {
  const key = await keys.find(keyIdOf(token));
  if (key === null) return null;
  const payload = await codec(key).verify(token, {
    algorithms: [ALGORITHM],
    issuer: TOKEN_ISSUER,
    requiredClaims: ["sub", "jti", "iat", "exp", "scope"],
    clockTolerance: CLOCK_SKEW_SECONDS,
    currentDate: new Date(now),
  });
  const principal = payload === false ? null : principalOf(payload, now);
  if (payload === false || principal === null) return null;
  return { principal, keyId: key.id, expiresSeconds: payload.exp ?? 0 };
}

/** The `kid` of a token's header; empty, which no key has, when there is none. */
function keyIdOf(token: string): string {
  try {
    const { kid } = decodeProtectedHeader(token);
    return typeof kid === "string" ? kid : "";
  } catch (error) {
    // The text is not a token.
    if (error instanceof TypeError) return "";
    throw error;
  }
}

function principalOf(payload: Record<string, unknown>, now: number): Principal | null {
  const { sub, jti, iat, scope } = payload;
  if (typeof sub !== "string" || !accountExpression.test(sub)) return null;
  if (typeof jti !== "string" || !TOKEN_ID.test(jti)) return null;
  if (typeof iat !== "number" || iat > now / 1000 + CLOCK_SKEW_SECONDS) return null;
  if (typeof scope !== "string") return null;
  const grants = scope.split(" ").filter((grant): grant is Grant => isGrant(grant));
  return { accountId: sub as AccountId, grants: new Set(grants), tokenId: jti };
}
