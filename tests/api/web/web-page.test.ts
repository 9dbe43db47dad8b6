import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { Api, errorOf, send } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";

const VIEWS = [
  "/",
  "/images/0197a1d0-5a5e-7000-8000-3c6e0b8a9c15?view=files&path=/",
  "/runs",
  "/runs/new",
  "/appliance",
  "/appliance/space",
];
const ASSETS = /(?:src|href)="(\/web\/assets\/[^"]+)"/g;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const get = (path: string, headers: Record<string, string> = {}, method = "GET") =>
  send(`${api.url}${path}`, method, { headers });
/** Fetches without undoing the compression. */
const fetched = (path: string, encoding: string) =>
  fetch(`${api.url}${path}`, { headers: { "accept-encoding": encoding }, decompress: false } as RequestInit);

async function assetsOf(path = "/"): Promise<string[]> {
  return [...(await get(path)).text.matchAll(ASSETS)].map(([, address = ""]) => address);
}

describe("the page", () => {
  test("is the same document at the address of every view, for every caller", async () => {
    const plain = (text: string) => text.replace(/nonce="[^"]+"/, "");
    const first = await get("/");
    for (const path of VIEWS) {
      const answer = await get(path);
      expect([answer.status, plain(answer.text)]).toEqual([200, plain(first.text)]);
      const head = await get(path, {}, "HEAD");
      expect([head.status, head.bytes.length]).toEqual([200, 0]);
      expect(head.headers.get("content-length")).toBe(answer.headers.get("content-length"));
      for (const method of ["POST", "PUT", "DELETE"]) errorOf(await get(path, {}, method), "method_not_allowed");
    }
    for (const path of ["/images", "/appliances", "/runsx", "/web", "/web/", "/web/assets", "/index.html"]) {
      errorOf(await get(path), "not_found");
    }
  });

  test("runs only what this service serves, and cannot be framed", async () => {
    const { headers, text } = await get("/");
    const policy = Object.fromEntries(
      (headers.get("content-security-policy") ?? "").split("; ").map((part) => {
        const [name = "", ...values] = part.split(" ");
        return [name, values];
      }),
    );
    const nonce = /<meta name="csp-nonce" nonce="([^"]{20,})">/.exec(text)?.[1];
    expect(policy).toMatchObject({
      "default-src": ["'none'"],
      "script-src": ["'self'"],
      "style-src": ["'self'", `'nonce-${nonce}'`],
      "img-src": ["'self'", "blob:"],
      "connect-src": ["'self'"],
      "worker-src": ["'self'"],
      "frame-ancestors": ["'none'"],
      "base-uri": ["'none'"],
      "form-action": ["'none'"],
      "require-trusted-types-for": ["'script'"],
      "trusted-types": ["coppice"],
    });
    expect(headers.get("content-security-policy")).not.toMatch(/unsafe|\*|https?:/);
    expect(Object.fromEntries(headers)).toMatchObject({
      "content-type": "text/html; charset=utf-8",
      "cache-control": "no-store",
      "referrer-policy": "no-referrer",
      "x-content-type-options": "nosniff",
      "x-frame-options": "DENY",
      "cross-origin-opener-policy": "same-origin",
      "cross-origin-resource-policy": "same-origin",
    });
    // Nothing inline, and nothing from elsewhere.
    expect(text).not.toMatch(/<style|style=|\son\w+=|javascript:|https?:/i);
    for (const [script] of text.matchAll(/<script[^>]*>[^<]*/g))
      expect(script).toMatch(/ src="\/web\/assets\/[^"]+">$/);
  });

  test("has another nonce in each answer", async () => {
    const nonces = await Promise.all(
      Array.from({ length: 20 }, async () => /nonce="([^"]+)"/.exec((await get("/")).text)?.[1]),
    );
    expect(new Set(nonces).size).toBe(20);
    for (const nonce of nonces) expect(Buffer.from(nonce ?? "", "base64").length).toBeGreaterThanOrEqual(16);
  });

  test("is not part of the description of the API", async () => {
    const { json } = await get("/openapi.json");
    expect(
      Object.keys(json.paths).filter((path) => path === "/" || /^\/(?:web|images|runs|appliance)\b/.test(path)),
    ).toEqual([]);
  });

  heldTest("is absent when the operator has disabled it", async () => {
    await using own = await Api.start({ web: null });
    for (const path of [...VIEWS, ...(await assetsOf()), "/web/session", "/web/api/v1/images"]) {
      for (const method of ["GET", "POST", "DELETE"]) {
        errorOf(await send(`${own.url}${path}`, method, { token: own.token }), "not_found");
      }
    }
    expect((await own.call("GET", "/v1/images")).status).toBe(200);
  });
});

describe("the files of the page", () => {
  test("have permanent names, and the best encoding that the browser accepts", async () => {
    const addresses = await assetsOf();
    expect(addresses.length).toBeGreaterThanOrEqual(2);
    for (const address of addresses) {
      const plain = await fetched(address, "identity");
      const content = await plain.bytes();
      expect([plain.status, plain.headers.get("content-encoding")]).toEqual([200, null]);
      for (const [asked, encoding, undo] of [
        ["gzip, deflate, br, zstd", "br", brotliDecompressSync],
        ["gzip", "gzip", gunzipSync],
        ["br;q=0, gzip;q=0.5", "gzip", gunzipSync],
      ] as const) {
        const answer = await fetched(address, asked);
        const bytes = await answer.bytes();
        expect(answer.headers.get("content-encoding")).toBe(encoding);
        expect(answer.headers.get("content-length")).toBe(String(bytes.byteLength));
        expect(undo(bytes).equals(content)).toBe(true);
        expect(answer.headers.get("etag")).not.toBe(plain.headers.get("etag"));
      }
      expect(plain.headers.get("cache-control")).toBe("public, max-age=31536000, immutable");
      expect(plain.headers.get("vary")).toBe("accept-encoding");
      expect(plain.headers.get("x-content-type-options")).toBe("nosniff");
      expect(plain.headers.get("content-type")).toMatch(
        /^(?:text\/(?:javascript|css); charset=utf-8|image\/svg\+xml)$/,
      );
      const again = await get(address, {
        "if-none-match": plain.headers.get("etag") ?? "",
        "accept-encoding": "identity",
      });
      expect([again.status, again.bytes.length]).toEqual([304, 0]);
      const head = await get(address, { "accept-encoding": "identity" }, "HEAD");
      expect([head.status, head.headers.get("content-length")]).toEqual([200, String(content.length)]);
    }
  });

  test("are only those of the list: no other name is a path", async () => {
    const names = ["manifest.json", "..%2fmanifest.json", "%2e%2e%2f%2e%2e%2fpackage.json", "__proto__", "constructor"];
    for (const name of [...names, "main.js%00", "main-.js", "x".repeat(5000)]) {
      errorOf(await get(`/web/assets/${name}`), "not_found");
    }
  });
});
