import { Elysia } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import type { Log } from "../../log.ts";
import type { Session, SessionUseCases } from "../../service/sessions.ts";
import { readJson } from "../body.ts";
import { empty, json, type Reply, respond } from "../reply.ts";
import { assetReply } from "./assets.ts";
import { readWebManifest, WEB_ASSETS_PATH } from "./bundle.ts";
import { type Door, notSignedIn } from "./door.ts";
import { FailedSignIns } from "./failed-sign-ins.ts";
import { indexPage } from "./index-page.ts";

/** Longest request to sign in, in `bytes`: a token of 4 KiB, with room. */
const SIGN_IN_BYTES_MAX = 8192;
/** Requests to sign in whose bodies may be on their way at a time. */
const SIGN_INS_COUNT_MAX = 64;

/** Addresses of views, which the script of the page shows; what lies below them is told by the script. */
const VIEWS = ["/", "/images/*", "/runs", "/runs/*", "/house", "/house/*"] as const;

export interface WebOptions {
  readonly prefix: string;
  readonly door: Door;
  readonly sessions: SessionUseCases;
  readonly version: string;
  readonly log: Log;
}

/** The page for people: its files, and signing in and out. Nothing of it is in the description of the API. */
export function webPlugin({ prefix, door, sessions, version, log }: WebOptions): Elysia {
  const failures = new FailedSignIns();
  let underWay = 0;
  const told = ({ principal, tokenExpiresAt }: Session, csrf: string) => ({
    account: principal.accountId,
    scopes: [...principal.grants].sort(),
    csrf,
    token_expires_at: new Date(tokenExpiresAt).toISOString(),
    version,
  });

  /** @throws ApiError `forbidden`, `too_many_requests`, `unauthorized`, `validation_error`, `payload_too_large` */
  const signIn = async (request: Request, address: string): Promise<Reply> => {
    door.requireOwnPage(request);
    const succeeded = failures.begin(address);
    const token = await readToken(request);
    const begun = await sessions.begin(token, door.cookie.of(request)).catch((error: unknown) => {
      if (error instanceof ApiError) log.info("a sign-in on the page failed", { address });
      throw error;
    });
    succeeded();
    const { accountId, tokenId } = begun.principal;
    log.info("somebody signed in on the page", { account: accountId, token_id: tokenId, address });
    return json(201, told(begun, begun.pageKey), { "set-cookie": door.cookie.set(begun.secret) });
  };
  const readToken = async (request: Request): Promise<string> => {
    if (underWay >= SIGN_INS_COUNT_MAX) {
      throw new ApiError("too_many_requests", "too many people sign in at the moment", { retry_after_seconds: 1 });
    }
    underWay += 1;
    using _done = {
      [Symbol.dispose]: () => {
        underWay -= 1;
      },
    };
    const body = await readJson(request, { limitBytes: SIGN_IN_BYTES_MAX, makeRoom: () => Promise.resolve() });
    const { token } = (body ?? {}) as { readonly token?: unknown };
    if (typeof token !== "string") throw new ApiError("validation_error", "token must be a string", { field: "token" });
    return token.trim();
  };

  const app = new Elysia();
  for (const view of VIEWS) {
    app.get(view, async ({ request }) => respond(indexPage(await readWebManifest()), request));
  }
  return app
    .get(`${WEB_ASSETS_PATH}:name`, async ({ request, params }) =>
      respond(await assetReply(params.name, request.headers), request),
    )
    .post(
      `${prefix}/session`,
      async ({ request, server }) => {
        const address = server?.requestIP(request)?.address ?? "";
        return respond(await signIn(request, address), request);
      },
      { parse: "none" },
    )
    .get(`${prefix}/session`, async ({ request }) => {
      door.requireOwnPage(request);
      const proof = door.proofOf(request);
      const session = proof === null ? null : await sessions.find(proof);
      if (proof === null || session === null) throw notSignedIn();
      return respond(json(200, told(session, proof.pageKey)), request);
    })
    .delete(`${prefix}/session`, async ({ request }) => {
      door.requireOwnPage(request);
      const proof = door.proofOf(request);
      if (proof === null || !(await sessions.isValid(proof))) throw notSignedIn();
      await sessions.end(proof);
      return respond(empty(204, { "set-cookie": door.cookie.clear() }), request);
    }) as unknown as Elysia;
}
