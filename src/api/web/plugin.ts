import { Elysia } from "elysia";
import type { Session, SessionProof } from "../../service/sessions.ts";
import { empty, json, respond } from "../reply.ts";
import { assetReply } from "./assets.ts";
import { readWebManifest, WEB_ASSETS_PATH } from "./bundle.ts";
import { indexPage } from "./index-page.ts";
import { SignIn, type SignInOptions } from "./sign-in.ts";

/** Addresses of views. The script of the page shows them, and routes the paths below them. */
const VIEWS = [
  "/",
  "/images/*",
  "/sandboxes",
  "/sandboxes/*",
  "/runs",
  "/runs/*",
  "/appliance",
  "/appliance/*",
] as const;

export interface WebOptions extends SignInOptions {
  readonly prefix: string;
  readonly version: string;
}

/** The web page: its files, and signing in and out. It is not part of the API description. */
export function webPlugin({ prefix, version, ...options }: WebOptions): Elysia {
  const { gate, sessions } = options;
  const signIn = new SignIn(options);
  const sessionPath = `${prefix}/session`;
  const sessionBody = ({ principal, tokenExpiresAt }: Session, { pageKey }: SessionProof) => ({
    account: principal.accountId,
    scopes: [...principal.grants].sort(),
    csrf: pageKey,
    token_expires_at: new Date(tokenExpiresAt).toISOString(),
    version,
  });
  const app = new Elysia();
  for (const view of VIEWS) {
    app.get(view, async ({ request }) => respond(indexPage(await readWebManifest()), request));
  }
  return app
    .get(`${WEB_ASSETS_PATH}:name`, async ({ request, params }) =>
      respond(await assetReply(params.name, request.headers), request),
    )
    .post(
      sessionPath,
      async ({ request, server }) => {
        const session = await signIn.run(request, server);
        const cookie = { "set-cookie": gate.cookie.set(request, session.secret) };
        return respond(json(201, sessionBody(session, session), cookie), request);
      },
      { parse: "none" },
    )
    .get(sessionPath, async ({ request }) => {
      const { session, proof } = await gate.signedIn(request);
      return respond(json(200, sessionBody(session, proof)), request);
    })
    .delete(sessionPath, async ({ request }) => {
      const { proof } = await gate.signedIn(request);
      await sessions.end(proof);
      return respond(empty(204, { "set-cookie": gate.cookie.clear(request) }), request);
    }) as unknown as Elysia;
}
