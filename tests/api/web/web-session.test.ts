import { afterAll, beforeAll, describe, expect, mock, spyOn, test } from "bun:test";
import { eq, sql } from "drizzle-orm";
import { webSessions } from "../../../src/db/schema.ts";
import { revokeToken } from "../../../src/db/tokens.ts";
import { deleteEndedWebSessions } from "../../../src/db/web-sessions.ts";
import { type Log, silentLog } from "../../../src/log.ts";
import { TokenKeys } from "../../../src/storage/token-keys.ts";
import { Api, errorOf, send } from "../../support/api/api.ts";
import { cookieOf, Page, signIn } from "../../support/api/page.ts";
import { heldTest } from "../../support/api/program.ts";

const HOUR_MS = 3_600_000;
const UNUSED_MS_MAX = 12 * HOUR_MS;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const tokenIdOf = (token: string): string =>
  JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString()).jti;
const idOf = (page: Page): string => new Bun.CryptoHasher("sha256").update(secretOf(page)).digest("hex");
const nameOf = ({ cookie }: Page): string => cookie.replace(/=.*/, "");
const secretOf = ({ cookie }: Page): string => cookie.replace(/^[^=]+=/, "");
const rowOf = (page: Page) =>
  api.parts.db.orm
    .select()
    .from(webSessions)
    .where(eq(webSessions.id, idOf(page)))
    .get();
const rowsOf = (token: string) =>
  api.parts.db.orm
    .select()
    .from(webSessions)
    .where(eq(webSessions.tokenId, tokenIdOf(token)))
    .all();
/** Makes a session look as if it was last used this long ago. */
const age = (page: Page, ms: number) =>
  api.parts.db.orm
    .update(webSessions)
    .set({ lastUsedAt: Date.now() - ms })
    .where(eq(webSessions.id, idOf(page)))
    .run();

describe("signing in", () => {
  test("returns the account, and sets a cookie that only this host gets and no script reads", async () => {
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
    expect(answer.headers.get("set-cookie")).toMatch(
      /^coppice-\d+=[A-Za-z0-9_-]{43}; Path=\/; HttpOnly; SameSite=Strict$/,
    );
    expect(answer.headers.get("cache-control")).toBe("no-store");
    const page = new Page(api.url, cookieOf(answer), answer.json.csrf);
    expect((await page.send("GET", "/web/session")).json).toEqual(answer.json);
  });

  test("refuses every invalid token in the same way, and sets no cookie", async () => {
    await using own = await Api.start();
    const revoked = await own.issue("alice", ["*"]);
    revokeToken(own.parts.db, tokenIdOf(revoked), Date.now());
    for (const token of ["", "x", `${own.token}x`, revoked, "x".repeat(5000)]) {
      const answer = await signIn(own.url, token);
      expect(errorOf(answer, "unauthorized").message).toBe("this token is not valid, or has expired");
      expect(answer.headers.get("set-cookie")).toBeNull();
    }
    errorOf(await signIn(own.url, 1), "validation_error");
    errorOf(await signIn(own.url, null, { json: null }), "validation_error");
    errorOf(await signIn(own.url, own.token, { json: undefined, body: "{" }), "validation_error");
    const long = { json: { token: own.token, more: "x".repeat(9000) } };
    errorOf(await signIn(own.url, "", long), "payload_too_large");
  });

  test("is refused after ten failures in a minute, whatever the token; successes do not count", async () => {
    await using own = await Api.start();
    for (let n = 0; n < 12; n++) expect((await signIn(own.url, own.token)).status).toBe(201);
    const answers = await Promise.all(Array.from({ length: 12 }, () => signIn(own.url, "wrong")));
    expect(answers.filter(({ status }) => status === 401)).toHaveLength(10);
    const late = await signIn(own.url, own.token);
    errorOf(late, "too_many_requests");
    expect(Number(late.headers.get("retry-after"))).toBeWithin(1, 61);
  });

  heldTest("behind a reverse proxy on this host, it counts by the address that the proxy reports", async () => {
    await using own = await Api.start({ publicUrl: "https://coppice.example" });
    const from = (address: string, token: string) => {
      const headers = { origin: "https://coppice.example", "x-forwarded-for": `10.9.9.9, ${address}` };
      return signIn(own.url, token, { headers });
    };
    for (let n = 0; n < 10; n++) errorOf(await from("192.0.2.1", "wrong"), "unauthorized");
    errorOf(await from("192.0.2.1", own.token), "too_many_requests");
    expect((await from("192.0.2.2", own.token)).status).toBe(201);
  });

  test("makes a new session, and ends the one that the browser had", async () => {
    const first = await Page.signIn(api);
    const again = await signIn(api.url, api.token, { headers: first.headers("POST") });
    expect(again.status).toBe(201);
    expect(cookieOf(again)).not.toBe(first.cookie);
    errorOf(await first.send("GET", "/web/session"), "unauthorized");
    // A secret that another party has chosen starts no session.
    const chosen = `${nameOf(first)}=${"A".repeat(43)}`;
    const fixed = await signIn(api.url, api.token, { headers: { cookie: chosen } });
    expect(cookieOf(fixed)).not.toBe(chosen);
  });

  test("does not end a session for its cookie alone, which browsers send to every port of the host", async () => {
    const page = await Page.signIn(api);
    for (const key of [{}, { "x-csrf-token": "" }, { "x-csrf-token": "A".repeat(43) }]) {
      const foreign = await signIn(api.url, api.foreignToken, { headers: { cookie: page.cookie, ...key } });
      expect(foreign.status).toBe(201);
    }
    expect((await page.send("GET", "/web/session")).status).toBe(200);
  });

  test("at another port of the host leaves this session as it is: the cookies have different names", async () => {
    await using other = await Api.start();
    const [here, there] = [await Page.signIn(api), await Page.signIn(other)];
    const cookie = `${here.cookie}; ${there.cookie}`;
    for (const page of [here, there]) {
      expect((await page.send("GET", "/web/session", { headers: { cookie } })).status).toBe(200);
    }
    expect(nameOf(here)).toBe(`coppice-${new URL(api.url).port}`);
    expect(nameOf(there)).not.toBe(nameOf(here));
  });

  test("the stored data proves nothing: neither the secret nor the key of the page", async () => {
    const page = await Page.signIn(api);
    const row = rowOf(page);
    const stored = JSON.stringify(row);
    expect(stored).not.toContain(secretOf(page));
    expect(stored).not.toContain(page.csrf);
    const forged = new Page(api.url, `${nameOf(page)}=${row?.id}`, page.csrf);
    errorOf(await forged.send("GET", "/web/session"), "unauthorized");
  });
});

describe("a session", () => {
  test("ends by signing out, on the server, too", async () => {
    const page = await Page.signIn(api);
    expect((await page.send("GET", "/web/api/v1/images")).status).toBe(200);
    const left = await page.send("DELETE", "/web/session");
    expect(left.status).toBe(204);
    expect(left.headers.get("set-cookie")).toBe(`${nameOf(page)}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0`);
    expect(rowOf(page)).toBeUndefined();
    for (const path of ["/web/session", "/web/api/v1/images"]) errorOf(await page.send("GET", path), "unauthorized");
    errorOf(await page.send("DELETE", "/web/session"), "unauthorized");
  });

  test("ends when its token is revoked", async () => {
    const token = await api.issue("alice", ["*"]);
    const page = await Page.signIn(api, token);
    expect((await page.send("GET", "/web/session")).status).toBe(200);
    expect(revokeToken(api.parts.db, tokenIdOf(token), Date.now())).toBe(true);
    errorOf(await page.send("GET", "/web/session"), "unauthorized");
    errorOf(await page.send("GET", "/web/api/v1/images"), "unauthorized");
    errorOf(await signIn(api.url, token), "unauthorized");
  });

  heldTest("ends at the time at which its token expires", async () => {
    await using own = await Api.start();
    const page = await Page.signIn(own, await own.issue("alice", ["*"], HOUR_MS));
    own.parts.clock.offsetMs = HOUR_MS - 60_000;
    expect((await page.send("GET", "/web/session")).status).toBe(200);
    own.parts.clock.offsetMs = HOUR_MS;
    errorOf(await page.send("GET", "/web/session"), "unauthorized");
  });

  test("ends with the key that signed its token, and not before", async () => {
    await using own = await Api.start();
    const page = await Page.signIn(own);
    const keys = await TokenKeys.open(own.parts.layout.keys);
    await keys.rotate(HOUR_MS);
    expect((await page.send("GET", "/web/session")).status).toBe(200);
    await keys.rotate(0);
    errorOf(await page.send("GET", "/web/session"), "unauthorized");
  });

  test("ends after twelve hours without a use, and every use counts", async () => {
    const page = await Page.signIn(api);
    age(page, UNUSED_MS_MAX - 60_000);
    expect((await page.send("GET", "/web/api/v1/images")).status).toBe(200);
    expect(Date.now() - (rowOf(page)?.lastUsedAt ?? 0)).toBeLessThan(60_000);
    age(page, UNUSED_MS_MAX);
    errorOf(await page.send("GET", "/web/api/v1/images"), "unauthorized");
    errorOf(await page.send("GET", "/web/session"), "unauthorized");
  });

  test("has its use written at most once a minute", async () => {
    const page = await Page.signIn(api);
    age(page, 30_000);
    const before = rowOf(page)?.lastUsedAt;
    expect((await page.send("GET", "/web/session")).status).toBe(200);
    expect(rowOf(page)?.lastUsedAt).toBe(before ?? 0);
    // The clock of the host was set back.
    age(page, -HOUR_MS);
    expect((await page.send("GET", "/web/session")).status).toBe(200);
    expect(rowOf(page)?.lastUsedAt).toBeLessThanOrEqual(Date.now());
  });

  heldTest("continues when its use cannot be written, and logs that once", async () => {
    const warn = mock();
    await using own = await Api.start({ log: { ...silentLog, warn } as unknown as Log });
    const { db } = own.parts;
    const page = await Page.signIn(own);
    db.orm
      .update(webSessions)
      .set({ lastUsedAt: Date.now() - HOUR_MS })
      .run();
    db.orm.run(sql`pragma query_only = 1`);
    for (let n = 0; n < 3; n++) expect((await page.send("GET", "/web/api/v1/images")).status).toBe(200);
    expect(warn).toHaveBeenCalledTimes(1);
    db.orm.run(sql`pragma query_only = 0`);
    own.parts.clock.offsetMs = 60_000;
    expect((await page.send("GET", "/web/session")).status).toBe(200);
    const now = Date.now() + own.parts.clock.offsetMs;
    expect(now - (db.orm.select().from(webSessions).get()?.lastUsedAt ?? 0)).toBeLessThan(60_000);
  });

  test("is one of at most 32 of its token: the one that was unused longest ends", async () => {
    const token = await api.issue("alice", ["*"]);
    const pages: Page[] = [];
    for (let n = 0; n < 32; n++) pages.push(await Page.signIn(api, token));
    const [first, second] = pages as [Page, Page];
    age(second, HOUR_MS);
    pages.push(await Page.signIn(api, token));
    expect(rowsOf(token)).toHaveLength(32);
    errorOf(await second.send("GET", "/web/session"), "unauthorized");
    expect((await first.send("GET", "/web/session")).status).toBe(200);
  });

  test("that has ended is removed", async () => {
    await using own = await Api.start();
    const token = await own.issue("alice", ["*"]);
    for (const one of [token, own.token, own.token, own.foreignToken]) await Page.signIn(own, one);
    const { db } = own.parts;
    revokeToken(db, tokenIdOf(token), Date.now());
    const [unused] = db.orm
      .select()
      .from(webSessions)
      .where(eq(webSessions.tokenId, tokenIdOf(own.token)))
      .all();
    const old = Date.now() - UNUSED_MS_MAX;
    db.orm
      .update(webSessions)
      .set({ lastUsedAt: old })
      .where(eq(webSessions.id, unused?.id ?? ""))
      .run();
    const sweep = (now: number, limit = 40) => deleteEndedWebSessions(db, { unusedSince: old, now }, limit);
    expect([sweep(Date.now(), 1), sweep(Date.now()), sweep(Date.now())]).toEqual([1, 1, 0]);
    expect(sweep(Date.now() + HOUR_MS)).toBe(2);
  });

  heldTest("keeps no stream of events once it has ended", async () => {
    const started = spyOn(globalThis, "setInterval");
    using _restored = { [Symbol.dispose]: () => started.mockRestore() };
    await using own = await Api.start();
    await own.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
    const { uuid } = (await own.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true" } })).json;
    const page = await Page.signIn(own);
    started.mockClear();
    const path = `${own.url}/web/api/v1/operations/${uuid}/events?follow=true`;
    const { body } = await fetch(path, { headers: page.headers() });
    const reader = (body as ReadableStream<Uint8Array>).getReader();
    await reader.read();
    const checks = started.mock.calls.filter(([, ms]) => ms === 15_000).map(([check]) => check as () => void);
    expect(checks).toHaveLength(1);
    expect((await page.send("DELETE", "/web/session")).status).toBe(204);
    checks[0]?.();
    for (let step = await reader.read(); !step.done; step = await reader.read()) expect(step.value).toBeDefined();
  });
});

describe("the API behind the cookie", () => {
  test("has the scopes of the token, and shows the objects of its account", async () => {
    const page = await Page.signIn(api, await api.issue("bob", ["files:write", "files:read"]));
    const uploaded = await page.send("POST", "/web/api/v1/files", { body: "of bob" });
    expect(uploaded.status).toBe(201);
    const refused = errorOf(await page.send("GET", "/web/api/v1/images"), "forbidden");
    expect(refused.details).toEqual({ scope: "images:read" });
    const path = `/v1/files?uuid=${uploaded.json.uuid}`;
    expect((await page.send("HEAD", `/web/api${path}`)).status).toBe(200);
    const other = await Page.signIn(api);
    expect((await other.send("HEAD", `/web/api${path}`)).status).toBe(404);
  });

  test("takes both halves of the proof and nothing else; no other interface takes them", async () => {
    const page = await Page.signIn(api);
    const { cookie, csrf } = page;
    const other = await Page.signIn(api);
    const bearer = { authorization: `Bearer ${api.token}` };
    const missing: Record<string, string>[] = [
      {},
      bearer,
      { cookie },
      { cookie, ...bearer },
      { "x-csrf-token": csrf },
      { cookie, "x-csrf-token": "" },
      { cookie, "x-csrf-token": other.csrf },
      { cookie: other.cookie, "x-csrf-token": csrf },
      { cookie: cookie.toUpperCase(), "x-csrf-token": csrf },
      { cookie: `__Host-${cookie}`, "x-csrf-token": csrf },
      { cookie: `${nameOf(page)}="${secretOf(page)}"`, "x-csrf-token": csrf },
    ];
    for (const headers of missing) {
      for (const path of ["/web/api/v1/images", "/web/session"]) {
        errorOf(await send(`${api.url}${path}`, "GET", { headers }), "unauthorized");
      }
    }
    // A cookie of another session does not fit this page, whose own cookie is found among others.
    const tossed = `${other.cookie}; ${nameOf(page)}=x; ${cookie}; ${nameOf(page)}=${"A".repeat(43)}`;
    const all = Array.from({ length: 8 }, () => `${nameOf(page)}=x`).join("; ");
    for (const [headers, status] of [
      [{ cookie: tossed, "x-csrf-token": csrf }, 200],
      [{ cookie: `${other.cookie}; ${nameOf(page)}=x`, "x-csrf-token": csrf }, 401],
      [{ cookie: `${all}; ${cookie}`, "x-csrf-token": csrf }, 401],
    ] as const) {
      expect((await send(`${api.url}/web/api/v1/images`, "GET", { headers })).status).toBe(status);
    }
    const among = { cookie: `theme=dark; ${cookie};x=y`, "x-csrf-token": csrf };
    expect((await send(`${api.url}/web/api/v1/images`, "GET", { headers: among })).status).toBe(200);
    for (const path of ["/v1/images", "/contree/v1/whoami", "/mcp"]) {
      expect((await send(`${api.url}${path}`, "GET", { headers: page.headers() })).status).toBe(401);
    }
  });
});
