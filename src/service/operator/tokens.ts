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
import type { Principal, ServiceParts } from "../parts.ts";
import { type IssuedToken, issueToken } from "../tokens.ts";

/** A token without its secret, which is stored nowhere. Times are `milliseconds` since the epoch. */
export interface Token extends Pick<TokenRow, "jti" | "accountId" | "scopes" | "issuedAt" | "expiresAt" | "revokedAt"> {
  readonly state: TokenState;
}

export interface ListTokens {
  readonly account?: string | undefined;
  readonly state?: TokenState | undefined;
  readonly limit: number;
  readonly offset: number;
}

export interface NewTokenRequest {
  readonly account: string;
  readonly scopes: readonly string[];
  readonly ttlSeconds: number;
}

/** Tokens of all accounts, for operators. What changes one is logged with the operator's account and token. */
export interface TokenUseCases {
  /** The newest first. */
  list(request: ListTokens): Token[];
  /** @throws ApiError `validation_error`; `conflict` when the account has too many */
  issue(principal: Principal, request: NewTokenRequest): Promise<Token & Pick<IssuedToken, "token">>;
  /** Ends a token at once; one that was revoked before stays so. @throws ApiError `not_found` */
  revoke(principal: Principal, id: string): void;
}

export function tokenUseCases({
  accounts,
  db,
  keys,
  clock,
  log,
}: Pick<ServiceParts, "accounts" | "db" | "keys" | "clock" | "log">): TokenUseCases {
  const { max } = accounts.limits.tokens;
  const shown = (row: TokenRow): Token => ({ ...row, state: tokenState(row, clock()) });
  return {
    list({ account, ...page }) {
      return listTokens(db, { ...page, accountId: account as AccountId | undefined, now: clock() }).map(shown);
    },

    async issue(principal, { account, scopes, ttlSeconds }) {
      const now = clock();
      if (countTokens(db, { accountId: account as AccountId, state: "valid", now }) >= max) {
        const message = `the account has ${max} valid tokens; revoke those that nobody needs`;
        throw new ApiError("conflict", message, { account });
      }
      // Otherwise one who asks for short tokens all day would fill the table.
      forgetEndedTokens(db, account as AccountId, now, max);
      const { token, row } = await issueToken(db, keys, { account, scopes, ttlMs: ttlSeconds * 1000, now });
      const made = { made_id: row.jti, made_for: account, scopes: row.scopes, expires_at: new Date(row.expiresAt) };
      log.info("an operator made a token", { ...operatorOf(principal), ...made });
      return { ...shown(row), token };
    },

    revoke(principal, id) {
      const row = getToken(db, id);
      if (row === null) throw new ApiError("not_found", "there is no such token", { uuid: id });
      if (!revokeToken(db, id, clock())) return;
      log.info("an operator revoked a token", { ...operatorOf(principal), revoked_id: id, revoked_for: row.accountId });
    },
  };
}

/** Fields of a log line that name who did it. */
export function operatorOf({ accountId, tokenId }: Principal) {
  return { account: accountId, token_id: tokenId };
}
