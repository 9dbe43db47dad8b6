import { jwt } from "@elysiajs/jwt";
import { decodeProtectedHeader } from "jose";
import type { Database } from "../db/database.ts";
import { getToken, insertToken, type TokenRow } from "../db/tokens.ts";
import { ApiError } from "../domain/errors.ts";
import { ACCOUNT_PATTERN, type AccountId } from "../domain/ids.ts";
import { type Grant, isGrant } from "../domain/scope.ts";
import type { TokenKey, TokenKeys } from "../storage/token-keys.ts";
import type { Principal } from "./parts.ts";

export const TOKEN_ISSUER = "coppice";
/** Longer tokens are refused unread, in `bytes`. */
export const TOKEN_BYTES_MAX = 4096;
/** The only algorithm, whatever a token's header says. */
const ALGORITHM = "HS256";
/** How far the clock may have been set back since a token was issued, in `seconds`. */
const CLOCK_SKEW_SECONDS = 5;
const TOKEN_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const accountExpression = new RegExp(ACCOUNT_PATTERN);

export interface TokenRequest {
  readonly account: string;
  readonly scopes: readonly string[];
  /** life in `milliseconds`, at least a second */
  readonly ttlMs: number;
  /** `milliseconds` since the epoch */
  readonly now: number;
}

export interface IssuedToken {
  /** the secret itself, which is kept nowhere */
  readonly token: string;
  readonly row: TokenRow;
}

/**
 * Signs a token and records it: a token without a row is not valid.
 * @throws ApiError `validation_error` when the account, a scope or the life is not allowed
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

/** A token whose signature and claims were found right, for the next request with it. */
interface VerifiedToken {
  readonly principal: Principal;
  readonly keyId: string;
  readonly expiresSeconds: number;
}

/** Tokens whose signature need not be computed again. */
const VERIFIED_COUNT_MAX = 1024;

/** A check of tokens: the principal, or null for whatever is not a token that we issued and that is good now. */
export function tokenVerifier(
  db: Database,
  keys: TokenKeys,
  clock: () => number,
): (token: string) => Promise<Principal | null> {
  const verified = new Map<string, VerifiedToken>();
  return async (token) => {
    if (token.length > TOKEN_BYTES_MAX) return null;
    const now = clock();
    const known = verified.get(token) ?? (await verify(token, keys, now));
    if (known === null || !(await isGood(known, db, keys, now))) {
      verified.delete(token);
      return null;
    }
    // Putting it last keeps the tokens that are in use.
    verified.delete(token);
    verified.set(token, known);
    if (verified.size > VERIFIED_COUNT_MAX) verified.delete(verified.keys().next().value ?? "");
    return known.principal;
  };
}

/** What can change between two requests with the same token: its key, its row, and the time. */
async function isGood(known: VerifiedToken, db: Database, keys: TokenKeys, now: number): Promise<boolean> {
  // The clock that issued it is this one, and `token list` calls it expired from here on: nothing is forgiven.
  if (now / 1000 >= known.expiresSeconds) return false;
  if ((await keys.find(known.keyId)) === null) return false;
  const row = getToken(db, known.principal.tokenId);
  return row !== null && row.revokedAt === null && row.accountId === known.principal.accountId;
}

/** Signs and checks with one key. Elysia's plugin keeps both in its decorator, where no request is needed for them. */
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

/** The `kid` of a token's header; empty, which no key has, where there is none. */
function keyIdOf(token: string): string {
  try {
    const { kid } = decodeProtectedHeader(token);
    return typeof kid === "string" ? kid : "";
  } catch (error) {
    // What is no token names no key.
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
