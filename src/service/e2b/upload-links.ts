import { createHmac, timingSafeEqual } from "node:crypto";
import { getTokenCached } from "../../db/tokens.ts";
import type { AccountId } from "../../domain/ids.ts";
import type { Scope } from "../../domain/scope.ts";
import type { TokenKey } from "../../storage/token-keys.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/** Lifetime of a link, in `milliseconds`. */
const LINK_MS = 3_600_000;
/** Longest secret that is looked at, in `characters`. */
const SECRET_LENGTH_MAX = 512;
const GRANTS: ReadonlySet<string> = new Set<Scope>(["files:write", "images:import"]);

/** Addresses at which a client uploads one file without a token, as builds of templates do. */
export interface UploadLinks {
  /**
   * A secret, for an address, with which the file that its client calls `hash` can be uploaded for the caller's account: for
   * an hour, as long as the token of the caller is valid.
   */
  secret(principal: Principal, hash: string): Promise<string>;
  /** The caller who made the secret for `hash`; null when it is not valid now. */
  caller(secret: string, hash: string): Promise<Principal | null>;
}

export function uploadLinks({ db, keys, clock }: Pick<ServiceParts, "db" | "keys" | "clock">): UploadLinks {
  return {
    async secret({ accountId, tokenId }, hash) {
      const key = await keys.signing();
      const claims = [key.id, tokenId, String(clock() + LINK_MS), Buffer.from(accountId).toString("base64url")];
      return [...claims, signature(key, claims, hash).toString("base64url")].join(".");
    },
    async caller(secret, hash) {
      const claims = secret.length > SECRET_LENGTH_MAX ? [] : secret.split(".");
      const given = Buffer.from(claims.pop() ?? "", "base64url");
      const [keyId = "", tokenId = "", end = "", account = ""] = claims;
      const key = claims.length === 4 ? await keys.find(keyId) : null;
      if (key === null) return null;
      const expected = signature(key, claims, hash);
      if (given.byteLength !== expected.byteLength || !timingSafeEqual(given, expected)) return null;
      const accountId = Buffer.from(account, "base64url").toString() as AccountId;
      const token = getTokenCached(db, tokenId);
      const endsAt = Math.min(Number(end), token?.expiresAt ?? 0);
      const isValid = token !== null && token.revokedAt === null && token.accountId === accountId && clock() < endsAt;
      return isValid ? { accountId, grants: GRANTS, tokenId } : null;
    },
  };
}

function signature({ secret }: TokenKey, claims: readonly string[], hash: string): Buffer {
  return createHmac("sha256", secret)
    .update(`upload:${claims.join(".")}:${hash}`)
    .digest();
}
