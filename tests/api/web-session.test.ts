import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { revokeToken } from "../../src/db/tokens.ts";
import { Api, errorOf, send } from "../support/api/api.ts";
import { cookieOf, Page, signIn } from "../support/api/page.ts";

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const tokenIdOf = (token: string): string =>
  JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString()).jti;

describe("signing in", () => {
  test("tells who it is, and sets a cookie that only this host gets and no script reads", async () => {
    const token = await api.issue("alice", ["images:read", "files:read"]);
    const answer = await signIn(api.url, ` ${token}\n`);
    expect(answer.status).toBe(201);
    expect(answer.json).toEqual({
      account: "alice",
      scopes: ["files:read", "images:read"],
      csrf: expect.stringMatching(/^[A-Za-z0-9_-]{43}$/),
      token_expires_at: expect.stringMatching(/^\d{4}-.*Z$/),
      version: expect.any(String),
    });
    expect(answer.headers.get("set-cookie")).toMatch(/^coppice=[A-Za-z0-9_-]{43}; Path=\/; HttpOnly; SameSite=Strict$/);
    expect(answer.headers.get("cache-control")).toBe("no-store");
    const page = new Page(api.url, cookieOf(answer), answer.json.csrf);
    expect((await page.send("GET", "/web/session")).json).toEqual(answer.json);
  });

  test("signing out ends the session on the server, and removes the cookie", async () => {
    const page = await Page.signIn(api);
    expect((await page.send("GET", "/web/api/v1/images")).status).toBe(200);
    const left = await page.send("DELETE", "/web/session");
    expect(left.status).toBe(204);
    expect(left.headers.get("set-cookie")).toBe("coppice=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    for (const path of ["/web/session", "/web/api/v1/images"]) errorOf(await page.send("GET", path), "unauthorized");
    errorOf(await page.send("DELETE", "/web/session"), "unauthorized");
  });

  test("a session ends with its token", async () => {
    const token = await api.issue("alice", ["*"]);
    const page = await Page.signIn(api, token);
    expect((await page.send("GET", "/web/session")).status).toBe(200);
    expect(revokeToken(api.parts.db, tokenIdOf(token), Date.now())).toBe(true);
    errorOf(await page.send("GET", "/web/session"), "unauthorized");
    errorOf(await page.send("GET", "/web/api/v1/images"), "unauthorized");
    errorOf(await signIn(api.url, token), "unauthorized");
  });
});

describe("the API behind the cookie", () => {
  test("has the scopes of the token, and shows the objects of its account", async () => {
    const page = await Page.signIn(api, await api.issue("bob", ["files:write", "files:read"]));
    const made = await page.send("POST", "/web/api/v1/files", { body: "of bob" });
    expect(made.status).toBe(201);
    expect(errorOf(await page.send("GET", "/web/api/v1/images"), "forbidden").details).toEqual({
      scope: "images:read",
    });
    const path = `/v1/files?uuid=${made.json.uuid}`;
    expect((await page.send("HEAD", `/web/api${path}`)).status).toBe(200);
    const other = await Page.signIn(api);
    expect((await other.send("HEAD", `/web/api${path}`)).status).toBe(404);
  });

  test("takes both halves of the proof and nothing else; no other interface takes them", async () => {
    const page = await Page.signIn(api);
    const { cookie, csrf } = page;
    const bearer = { authorization: `Bearer ${api.token}` };
    const missing: Record<string, string>[] = [{}, bearer, { cookie }, { cookie, ...bearer }, { "x-csrf-token": csrf }];
    for (const headers of missing) {
      errorOf(await send(`${api.url}/web/api/v1/images`, "GET", { headers }), "unauthorized");
    }
    for (const path of ["/v1/images", "/contree/v1/whoami", "/mcp"]) {
      const answer = await send(`${api.url}${path}`, "GET", { headers: page.headers() });
      expect(answer.status).toBe(401);
    }
  });
});
