/** Which requests reach the API behind the cookie, and how browsers treat the answers. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, spyOn, test } from "bun:test";
import { createHash } from "node:crypto";
import { Api, errorOf, send } from "../../support/api/api.ts";
import { Page, signIn } from "../../support/api/page.ts";
import { heldTest } from "../../support/api/program.ts";
import { rawAnswer } from "../../support/api/raw.ts";
import { runningInstance } from "../../support/api/running.ts";
import { refusedHandshake, TestSocket } from "../../support/api/socket.ts";

// The first instance may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
let page: Page;
beforeAll(async () => {
  api = await Api.start();
  page = await Page.signIn(api);
});
afterAll(() => api[Symbol.asyncDispose]());

const FOREIGN = ["https://evil.example", "http://127.0.0.1:1", "http://localhost:8642", "null", "file://", ""];

describe("a page of another origin", () => {
  test("cannot change anything, even with all that proves the session", async () => {
    const proof = { cookie: page.cookie, "x-csrf-token": page.csrf };
    for (const origin of [...FOREIGN, `${api.url}1`, `${api.url}.evil.example`]) {
      const headers = { ...proof, origin };
      for (const [method, path] of [
        ["POST", "/web/api/v1/files"],
        ["DELETE", "/web/api/v1/operations/0197a1d0-5a5e-7000-8000-3c6e0b8a9c15"],
        ["DELETE", "/web/session"],
      ] as const) {
        errorOf(await send(`${api.url}${path}`, method, { headers, body: "x" }), "forbidden");
      }
      errorOf(await signIn(api.url, api.token, { headers: { origin } }), "forbidden");
    }
    for (const path of ["/web/api/v1/files", "/web/session"]) {
      errorOf(await send(`${api.url}${path}`, "POST", { headers: proof, body: "{}" }), "forbidden");
    }
    expect((await page.send("GET", "/web/session")).status).toBe(200);
  });

  test("cannot sign its visitor in by a form", async () => {
    const form = { origin: "https://evil.example", "content-type": "text/plain" };
    const body = `{"token":"${api.token}","x":"="}`;
    const answer = await send(`${api.url}/web/session`, "POST", { headers: form, body });
    errorOf(answer, "forbidden");
    expect(answer.headers.get("set-cookie")).toBeNull();
    // A form of the own origin could not either.
    const own = { origin: api.url, "content-type": "application/x-www-form-urlencoded" };
    const sent = await send(`${api.url}/web/session`, "POST", { headers: own, body: `token=${api.token}` });
    errorOf(sent, "validation_error");
  });

  test("cannot read: a browser reports the origin and the purpose of a request", async () => {
    const refused: Record<string, string>[] = [
      { "sec-fetch-site": "cross-site" },
      { "sec-fetch-site": "same-site" },
      { origin: "https://evil.example" },
      ...["script", "image", "style", "iframe", "frame", "object", "embed", "worker", "serviceworker", "video"].map(
        (dest) => ({ "sec-fetch-dest": dest }),
      ),
    ];
    for (const headers of refused) {
      for (const path of ["/web/api/v1/images", page.link("/v1/images"), "/web/session"]) {
        errorOf(await page.send("GET", path, { headers }), "forbidden");
        expect((await page.send("HEAD", path, { headers })).status).toBe(403);
      }
    }
    for (const headers of [{}, { "sec-fetch-site": "none", "sec-fetch-dest": "document" }, { origin: api.url }]) {
      expect((await page.send("GET", page.link("/v1/images"), { headers })).status).toBe(200);
    }
    errorOf(
      await page.send("POST", "/web/api/v1/files", { body: "x", headers: { "sec-fetch-site": "none" } }),
      "forbidden",
    );
  });

  test("gets no permission by a preflight request", async () => {
    for (const path of ["/", "/web/session", "/web/api/v1/images"]) {
      const asked = { origin: "https://evil.example", "access-control-request-method": "POST" };
      const { headers } = await send(`${api.url}${path}`, "OPTIONS", { headers: asked });
      expect([...headers.keys()].filter((name) => name.startsWith("access-control-"))).toEqual([]);
    }
  });

  test("cannot become this service's own by a name that resolves to this host", async () => {
    const rebound = { host: "evil.example:8642", origin: "http://evil.example:8642" };
    const answer = await signIn(api.url, api.token, { headers: rebound });
    expect(errorOf(answer, "forbidden").message).toContain("set public_url");
    for (const host of ["localhost:8642", "box", "box.local:1", "192.0.2.7:8642", "[2001:db8::1]:8642"]) {
      expect((await signIn(api.url, api.token, { headers: { host, origin: `http://${host}` } })).status).toBe(201);
    }
  });

  heldTest("the address that the operator has set is the service's own, and needs a cookie of TLS", async () => {
    await using own = await Api.start({ publicUrl: "https://coppice.example" });
    const headers = { origin: "https://coppice.example" };
    const answer = await signIn(own.url, own.token, { headers });
    expect(answer.headers.get("set-cookie")).toMatch(
      /^__Host-coppice-\d+=[^;]+; Path=\/; HttpOnly; SameSite=Strict; Secure$/,
    );
    const cookie = answer.headers.get("set-cookie")?.split(";")[0] ?? "";
    const proof = { cookie, "x-csrf-token": answer.json.csrf };
    expect((await send(`${own.url}/web/api/v1/images`, "GET", { headers: proof })).status).toBe(200);
    // Without the prefix, another host of the domain may have set it.
    const tossed = { ...proof, cookie: cookie.replace("__Host-", "") };
    errorOf(await send(`${own.url}/web/api/v1/images`, "GET", { headers: tossed }), "unauthorized");
    const plain = await signIn(own.url, own.token, { headers: { host: "box:1", origin: "http://box:1" } });
    expect(errorOf(plain, "forbidden").message).toContain("sign in at https://coppice.example");
    expect((await signIn(own.url, own.token)).status).toBe(201);
  });
});

describe("a link", () => {
  test("has the page's half of the proof in its path, reads, and does nothing else", async () => {
    const headers = { cookie: page.cookie };
    const link = `${api.url}${page.link("/v1/images")}`;
    expect((await send(link, "GET", { headers })).status).toBe(200);
    expect((await send(link, "HEAD", { headers })).status).toBe(200);
    errorOf(await send(link, "GET"), "unauthorized");
    const changing = { headers: { ...headers, origin: api.url }, body: "x" };
    errorOf(await send(`${api.url}${page.link("/v1/files")}`, "POST", changing), "forbidden");
    for (const key of ["", "~", "x", `${page.csrf}x`, `${page.csrf}%00`, "~".repeat(500)]) {
      const { status } = await send(`${api.url}/web/api/~${key}/v1/images`, "GET", { headers });
      expect(status).toBeWithin(401, 405);
    }
  });

  heldTest("leaves its key in no line of the log", async () => {
    const lines: string[] = [];
    const write = (...args: unknown[]) => void lines.push(JSON.stringify(args));
    const log = { debug: write, info: write, warn: write, error: write, child: () => log };
    await using own = await Api.start({ log });
    const other = await Page.signIn(own);
    for (const path of ["/v1/images", "/v1/nothing", "/v1/operations/x", "/v1/images?limit=x"]) {
      await other.send("GET", other.link(path));
      await other.send("GET", other.link(path), { headers: { cookie: "" } });
      await other.send("GET", other.link(path), { headers: { "sec-fetch-site": "cross-site" } });
      await other.send("PUT", other.link(path));
    }
    const key = `~${other.csrf}`;
    // Remains of links that were shortened, or passed through a program that spells them in another way.
    for (const path of [key, `${key}?x`, `${key}/`, `%7E${key.slice(1)}/v1/images`, `/${key}/v1/images`]) {
      await other.send("GET", `/web/api/${path}`);
    }
    const logged = lines.join("\n");
    expect(logged).toContain("/web/api/v1/images");
    for (const secret of [other.csrf, other.cookie.replace(/^[^=]+=/, ""), own.token])
      expect(logged).not.toContain(secret);
  });
});

test("no spelling of a path leads past the cookie, or beyond the specified API", async () => {
  const proof = page.headers();
  const refused = [
    "/web/api//v1/images",
    "//web/api/v1/images",
    "/WEB/API/v1/images",
    "/web/api/V1/images",
    "/web/%61pi/v1/images",
    "/web%2fapi/v1/images",
    "/web/api/v1%2fimages",
    "/web/api/%2e%2e/v1/images",
    "/web/api/v1/images/",
    "/web/api/v1",
    "/web/api/",
    "/web/api",
    "/web/apix/v1/images",
    "/web/api/mcp",
    "/web/api/contree/v1/whoami",
    "/web/api/web/session",
    "/web/api/web/api/v1/images",
    "/web/api/metrics",
    "/web/api/openapi.json",
    "/web/api/~~/v1/images",
    `/web/api/~${page.csrf}//v1/images`,
    `/web/api/~${page.csrf}/mcp`,
  ];
  for (const path of refused) {
    expect(await rawAnswer(api.url, "GET", path, proof)).toMatchObject({ path, status: 404 });
  }
  // However the path is spelled, the credential of the resolved path is required.
  for (const path of ["/web/api/../../v1/images", "/images/../v1/images", "/web/assets/..%2f../v1/images"]) {
    expect((await rawAnswer(api.url, "GET", path, proof)).status).toBeOneOf([401, 404]);
  }
  for (const path of ["/runs/../web/api/v1/images", "/./web/api/v1/images", "/web\\api\\v1\\images"]) {
    expect((await rawAnswer(api.url, "GET", path, {})).status).toBe(401);
  }
});

describe("an answer", () => {
  test("is not a document, a script or a picture of this origin, whatever a guest's file is called", async () => {
    const html = "<script>fetch('/web/session')</script>";
    const names = ["a.html", "a.svg", "a.js", "a.mjs", "a.css", "a.xml", "a.pdf", "a.png", "a.wasm", "a.txt", "a"];
    const image = await api.addImage([names.map((path) => ({ path, type: "f" as const, content: html }))]);
    for (const name of names) {
      for (const text of ["", "&text=true"]) {
        const path = `/v1/inspect/${image}/download?path=/${name}${text}`;
        const { status, headers, text: content } = await page.send("GET", page.link(path));
        expect([status, content]).toEqual([200, html]);
        expect(headers.get("content-type")).toMatch(/^(?:application\/octet-stream|text\/plain; charset=utf-8)$/);
        expect(headers.get("content-disposition")).toStartWith("attachment");
        expect(headers.get("content-security-policy")).toBe("default-src 'none'; sandbox; frame-ancestors 'none'");
        expect(headers.get("x-content-type-options")).toBe("nosniff");
        expect(headers.get("cross-origin-resource-policy")).toBe("same-origin");
        expect(headers.get("cache-control")).toBe("no-store");
      }
    }
  });

  test("has these headers when it is an error, and asks for no bearer token", async () => {
    for (const [method, path, status] of [
      ["GET", "/web/api/v1/images?limit=x", 400],
      ["GET", "/web/api/v1/nothing", 404],
      ["PUT", "/web/api/v1/images", 405],
    ] as const) {
      const answer = await page.send(method, path);
      expect(answer.status).toBe(status);
      expect(answer.headers.get("content-security-policy")).toContain("sandbox");
    }
    const { status, headers } = await send(`${api.url}/web/api/v1/images`, "GET");
    expect([status, headers.get("www-authenticate")]).toEqual([401, null]);
    expect(headers.get("content-security-policy")).toContain("sandbox");
    expect((await page.send("PUT", "/web/api/v1/images")).headers.get("allow")).toBe("GET, HEAD");
  });

  test("is that of the specified API: HEAD, ranges, entity tags, uploads, addresses", async () => {
    const bytes = crypto.getRandomValues(new Uint8Array(300_000));
    const pieces = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < bytes.length; at += 50_000) controller.enqueue(bytes.subarray(at, at + 50_000));
        controller.close();
      },
    });
    const uploaded = await page.send("POST", "/web/api/v1/files", { body: pieces });
    expect(uploaded.json.sha256).toBe(createHash("sha256").update(bytes).digest("hex"));
    const image = await api.addImage([[{ path: "f", type: "f", content: "0123456789" }]]);
    const path = `/web/api/v1/inspect/${image}/download?path=/f`;
    const head = await page.send("HEAD", path);
    expect([head.status, head.headers.get("content-length"), head.bytes.length]).toEqual([200, "10", 0]);
    const part = await page.send("GET", path, { headers: { range: "bytes=2-4" } });
    expect([part.status, part.text]).toEqual([206, "234"]);
    const tag = { "if-none-match": head.headers.get("etag") ?? "" };
    expect((await page.send("GET", path, { headers: tag })).status).toBe(304);
    const json = { image, command: "true" };
    const spawned = await page.send("POST", "/web/api/v1/instances", { json });
    expect(spawned.status).toBe(201);
    const location = spawned.headers.get("location") ?? "";
    expect(location).toBe(`/web/api/v1/operations/${spawned.json.uuid}`);
    expect((await page.send("GET", location)).json).toMatchObject({ kind: "instance" });
    expect((await page.send("DELETE", location)).status).toBe(202);
  });

  heldTest("has addresses below the cookie behind a reverse proxy, too", async () => {
    await using own = await Api.start({ publicUrl: "https://coppice.example/box" });
    const image = await own.addImage([[{ path: "f", type: "f", content: "x" }]]);
    const other = await Page.signIn(own);
    // Over loopback, browsers keep the cookie.
    const proof = { ...other.headers("POST"), origin: "https://coppice.example" };
    const { status, json, headers } = await send(`${own.url}/web/api/v1/instances`, "POST", {
      headers: proof,
      json: { image, command: "true" },
    });
    expect([status, headers.get("location")]).toEqual([201, `/web/api/v1/operations/${json.uuid}`]);
  });

  test("is counted under the route that made it", async () => {
    await page.send("GET", "/web/api/v1/files?limit=1");
    const { text } = await send(`${api.url}/metrics`, "GET");
    expect(text).toContain('route="/v1/files"');
    expect(text).not.toContain("/web/api");
    expect(text).not.toContain(page.csrf);
  });
});

describe("a WebSocket", () => {
  const path = "/v1/instances/0197a1d0-5a5e-7000-8000-3c6e0b8a9c15/processes/1/attach";

  test("is refused without an own origin and both halves of the proof", async () => {
    const { cookie } = page;
    const own = { cookie, origin: api.url };
    const handshake = (headers: Record<string, string>, at = page.link(path), token: string | null = null) =>
      refusedHandshake(api, at, token, headers);
    expect(await handshake(own)).toMatchObject({ status: 404 });
    expect(await handshake({ cookie })).toMatchObject({ status: 403 });
    for (const origin of ["https://evil.example", "http://127.0.0.1:1", "null"]) {
      expect(await handshake({ cookie, origin })).toMatchObject({ status: 403 });
    }
    expect(await handshake({ ...own, "sec-fetch-site": "cross-site" })).toMatchObject({ status: 403 });
    expect(await handshake({ origin: api.url })).toMatchObject({ status: 401 });
    expect(await handshake(own, `/web/api${path}`)).toMatchObject({ status: 401 });
    expect(await handshake({ origin: api.url }, `/web/api${path}`, api.token)).toMatchObject({ status: 401 });
    expect(await handshake(own, path)).toMatchObject({ status: 401 });
  });

  heldTest("carries the streams of a process, and is closed once the session has ended", async () => {
    await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
    await using running = await runningInstance(api, "echo hello; cat", { spec: { stdin: "open" } });
    const own = await Page.signIn(api);
    const headers = { cookie: own.cookie, origin: api.url };
    const started = spyOn(globalThis, "setInterval");
    using _restored = { [Symbol.dispose]: () => started.mockRestore() };
    const link = own.link(`${running.path}/processes/1/attach`);
    using socket = await TestSocket.open(api, link, { headers, protocols: ["v5.channel.k8s.io"] });
    await socket.until(() => socket.received.includes("hello"));
    expect(socket.raw.protocol).toBe("v5.channel.k8s.io");
    const checks = started.mock.calls.filter(([, ms]) => ms === 15_000).map(([check]) => check as () => void);
    expect(checks).toHaveLength(1);
    checks[0]?.();
    socket.send(Buffer.from("\0more\n"));
    await socket.until(() => socket.received.includes("more"));
    expect((await own.send("DELETE", "/web/session")).status).toBe(204);
    checks[0]?.();
    expect(await socket.closed).toMatchObject({ code: 1008 });
  });
});
