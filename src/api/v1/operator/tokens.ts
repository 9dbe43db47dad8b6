import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { isoTime } from "../../../domain/ids.ts";
import { LIMIT_DEFAULT } from "../../../domain/tree/listing.ts";
import type { Token as StoredToken } from "../../../service/operator/tokens.ts";
import type { Principal } from "../../../service/parts.ts";
import { empty, json, respond } from "../../reply.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { IssuedToken, Token, TokenRequest, TokensQuery, TTL_SECONDS_DEFAULT } from "../schema/operator.ts";
import type { Surface } from "../surface.ts";

const SCOPE = "operator";

const LIST = {
  query: checked(TokensQuery),
  ...about({
    id: "listTokens",
    tag: "Operator",
    summary: "List the tokens of all accounts, the newest first",
    responses: { 200: jsonSpec("a page of tokens, without their secrets", Type.Array(Token)) },
  }),
};

const ISSUE = {
  body: checked(TokenRequest),
  ...about({
    id: "issueToken",
    tag: "Operator",
    summary: "Make a token for any account",
    responses: { 201: jsonSpec("the token; no other answer contains it", IssuedToken) },
    errors: ["conflict"],
  }),
};

const REVOKE = {
  ...about({
    id: "revokeToken",
    tag: "Operator",
    summary: "Revoke a token at once; sessions of the page that use it end, too",
    responses: { 204: { description: "the token is revoked" } },
    errors: ["not_found"],
  }),
};

export function tokenRoutes(surface: Surface) {
  const { tokens } = surface.service;
  return new Elysia({ prefix: "/operator/tokens" })
    .use(surface.access)
    .get(
      "",
      ({ principal, query: { limit = LIMIT_DEFAULT, offset = 0, ...filter } }) =>
        tokens.list({ ...filter, limit, offset }).map((token) => tokenOf(principal, token)),
      { reads: SCOPE, ...LIST },
    )
    .post(
      "",
      async ({ request, principal, body: { account, scopes, ttl = TTL_SECONDS_DEFAULT } }) => {
        const issued = await tokens.issue(principal, { account, scopes, ttlMs: ttl * 1000 });
        return respond(json(201, { ...tokenOf(principal, issued), token: issued.token }), request) as never;
      },
      { takes: { scope: SCOPE }, ...ISSUE },
    )
    .delete(
      "/:uuid",
      ({ request, principal, params }) => {
        tokens.revoke(principal, params.uuid);
        return respond(empty(204), request);
      },
      { writes: SCOPE, ...REVOKE },
    );
}

function tokenOf({ tokenId }: Principal, { jti, accountId, scopes, issuedAt, expiresAt, state }: StoredToken): Token {
  const times = { issued_at: isoTime(issuedAt), expires_at: isoTime(expiresAt) };
  return { uuid: jti, account: accountId, scopes, ...times, state, current: jti === tokenId };
}
