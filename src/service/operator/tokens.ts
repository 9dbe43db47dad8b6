import {
  countTokens,
  forgetEndedTokens,
  getToken,
  listTokens,
  revokeToken,
  type TokenRow,
  tokenState,
} from "../../db/tokens.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId } from "../../domain/ids.ts";
import type { TokenState } from "../../domain/scope.ts";
import { type Changed, change, unchanged } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { type IssuedToken, issueToken } from "../tokens.ts";

/** A token without its secret, which is stored nowhere. Times are `milliseconds` since the epoch. */
export interface Token extends Pick<TokenRow, "jti" | "accountId" | "scopes" | "issuedAt" | "expiresAt" | "revokedAt"> {
  readonly state: TokenState;
}

export interface ListTokens {
  readonly account?: string | undefined;
  readonly state?: TokenState | undefined;
  /** default: all */
  readonly limit?: number;
  readonly offset?: number;
}

export interface NewTokenRequest {
  readonly account: string;
  readonly scopes: readonly string[];
  /** lifetime in `milliseconds` */
  readonly ttlMs: number;
}

/** Tokens of all accounts, and the keys that sign them, for operators. */
export interface TokenUseCases {
  /** The newest first. */
  list(request: ListTokens): Token[];
  /** @throws ApiError `validation_error`; `conflict` when the account has too many */
  issue(principal: Principal, request: NewTokenRequest): Promise<Changed<Token & Pick<IssuedToken, "token">>>;
  /**
   * Ends a token at once. A token that was revoked before stays revoked.
   * @returns true when this call revoked it
   * @throws ApiError `not_found`
   */
  revoke(principal: Principal, id: string): Changed<boolean>;
  /**
   * Makes a new key for tokens from now on. Tokens of older keys stay valid for `graceMs`.
   * @returns id of the key
   */
  rotateKey(principal: Principal, graceMs: number): Promise<Changed<string>>;
}

export function tokenUseCases(parts: Pick<ServiceParts, "accounts" | "db" | "keys" | "clock" | "log">): TokenUseCases {
  const { accounts, db, keys, clock } = parts;
  const { max } = accounts.limits.tokens;
  const withState = (row: TokenRow): Token => ({ ...row, state: tokenState(row, clock()) });
  return {
    list({ account, ...page }) {
      return listTokens(db, { ...page, accountId: account as AccountId | undefined, now: clock() }).map(withState);
    },

    async issue(principal, { account, scopes, ttlMs }) {
      const now = clock();
      const details = ({ jti, scopes, expiresAt }: Token) => {
        return { made_id: jti, made_for: account, scopes, expires_at: new Date(expiresAt) };
      };
      const what = { noun: "token", verb: "create", id: ({ jti }: Token) => jti, details } as const;
      return await change(parts, principal, what, async () => {
        if (countTokens(db, { accountId: account as AccountId, state: "valid", now }) >= max) {
          const message = `the account has ${max} valid tokens; revoke those that are not needed`;
          throw new ApiError("conflict", message, { account });
        }
        // Otherwise repeated requests for short-lived tokens would fill the table.
        forgetEndedTokens(db, account as AccountId, now, max);
        const { token, row } = await issueToken(db, keys, { account, scopes, ttlMs, now });
        return { ...withState(row), token };
      });
    },

    revoke(principal, id) {
      const row = getToken(db, id);
      if (row === null) throw new ApiError("not_found", "there is no such token", { uuid: id });
      if (row.revokedAt !== null) return unchanged(false);
      const details = () => ({ revoked_id: id, revoked_for: row.accountId });
      return change(parts, principal, { noun: "token", verb: "revoke", id, details }, () =>
        revokeToken(db, id, clock()),
      );
    },

    async rotateKey(principal, graceMs) {
      const what = {
        noun: "key",
        verb: "rotate",
        id: (id: string) => id,
        details: (id: string) => ({ key: id }),
      } as const;
      return await change(parts, principal, what, () => keys.rotate(graceMs));
    },
  };
}
