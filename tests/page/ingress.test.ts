/** A real browser at ports of sandboxes: what a link opens, and what pages of hostile guests cannot do to others. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Page } from "playwright-core";
import { GatewayScene } from "../support/ingress/gateway-scene.ts";
import { PageBrowser } from "../support/page/browser.ts";
import { until } from "../support/waiting.ts";

/** A program of a guest, with the requests and messages that it got. */
interface Guest {
  readonly server: Bun.Server<undefined>;
  readonly requests: { readonly path: string; readonly cookie: string }[];
}

const PAGE = "<!doctype html><title>guest</title><h1>from the guest</h1>";
const HOSTILE_FIELDS = {
  "content-type": "text/html",
  "clear-site-data": '"*"',
  "alt-svc": 'h3=":1"',
  "strict-transport-security": "max-age=9; includeSubDomains",
};

let gateway: GatewayScene;
let browser: PageBrowser;
const guests: Guest[] = [];
beforeAll(async () => {
  gateway = await GatewayScene.start({ domain: "localhost" });
  browser = await PageBrowser.start("*.localhost");
});
afterAll(async () => {
  await browser[Symbol.asyncDispose]();
  for (const { server } of guests) await server.stop(true);
  await gateway[Symbol.asyncDispose]();
});

/** A sandbox whose port 8080 has pages, events and a WebSocket, and a link to it. */
async function guest(name: string, fields: Readonly<Record<string, string>> = { "content-type": "text/html" }) {
  const requests: Guest["requests"] = [];
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch(request, self) {
      const { pathname } = new URL(request.url);
      requests.push({ path: pathname, cookie: request.headers.get("cookie") ?? "" });
      if (pathname === "/socket" && self.upgrade(request)) return;
      if (pathname === "/events") {
        return new Response("data: one\n\ndata: two\n\n", { headers: { "content-type": "text/event-stream" } });
      }
      const cookies = [`own-${name}=1; Path=/`, `wide-${name}=1; Path=/; Domain=localhost`];
      const headers = [...Object.entries(fields), ...cookies.map((cookie) => ["set-cookie", cookie] as const)];
      return new Response(PAGE, { headers: headers as [string, string][] });
    },
    websocket: { message: (socket, text) => void socket.send(`echo ${text}`) },
  });
  guests.push({ server, requests });
  const sandbox = gateway.add(name);
  gateway.scene.serve(`${name} 8080`, server.port ?? 0);
  const { url } = await gateway.link(sandbox.id, await gateway.token());
  return { requests, url };
}

/** Loads a page, and waits until it is there. */
async function open(page: Page, url: URL | string): Promise<void> {
  await page.goto(String(url));
  await page.getByText("from the guest").waitFor();
}

describe("a browser", () => {
  test("opens a link, and uses pages, events and WebSockets of the guest by its cookie", async () => {
    const dev = await guest("dev");
    const tab = await browser.open(dev.url.origin, { neighbours: [dev.url.origin] });
    const { page } = tab;
    await open(page, dev.url);
    expect(page.url()).toBe(`${dev.url.origin}/`);
    const seen = await page.evaluate(async () => {
      const answer = await fetch("/data", { method: "POST", body: "x".repeat(100_000) });
      const events = await new Promise<string>((resolve) => {
        const source = new EventSource("/events");
        const texts: string[] = [];
        source.onmessage = ({ data }) => {
          texts.push(String(data));
          if (texts.length === 2) resolve(texts.join(" "));
          if (texts.length === 2) source.close();
        };
      });
      const socket = new WebSocket(`${location.origin.replace("http", "ws")}/socket`);
      const echo = await new Promise<string>((resolve) => {
        socket.onopen = () => socket.send("hello");
        socket.onmessage = ({ data }) => resolve(String(data));
      });
      return { status: answer.status, events, echo, cookie: document.cookie };
    });
    expect(seen).toMatchObject({ status: 200, events: "one two", echo: "echo hello" });
    // Its own cookies are there, for its host alone; the one of the ingress is not for scripts.
    expect(seen.cookie).toBe("own-dev=1; wide-dev=1");
    const paths = dev.requests.map(({ path }) => path).filter((path) => path !== "/favicon.ico");
    expect(paths).toEqual(["/", "/data", "/events", "/socket"]);
    expect(JSON.stringify(dev.requests)).not.toContain("coppice");
    await tab[Symbol.asyncDispose]();
  });

  test("gives no page of one guest access to another guest or to its cookies", async () => {
    const victim = await guest("victim");
    const evil = await guest("evil", HOSTILE_FIELDS);
    const tab = await browser.open(evil.url.origin, { neighbours: [victim.url.origin] });
    const { page } = tab;
    tab.expectProblem(/CORS policy|Failed to load|frame-ancestors|WebSocket/);
    await open(page, victim.url);
    await page.waitForLoadState("networkidle");
    await open(page, evil.url);
    const before = victim.requests.length;
    await page.evaluate(async (origin) => {
      const settled = (work: Promise<unknown>) => work.catch(() => undefined);
      await settled(fetch(`${origin}/fetch`, { credentials: "include" }));
      await settled(fetch(`${origin}/post`, { credentials: "include", mode: "no-cors", method: "POST", body: "x" }));
      const socket = new WebSocket(`${origin.replace("http", "ws")}/socket`);
      await new Promise((resolve) => {
        socket.onclose = resolve;
        socket.onopen = resolve;
      });
      const frame = document.createElement("iframe");
      frame.src = `${origin}/frame`;
      await new Promise((resolve) => {
        frame.onload = resolve;
        document.body.append(frame);
      });
      // biome-ignore lint/suspicious/noDocumentCookie: a hostile page takes the old way.
      document.cookie = "coppice-ingress=evil; domain=localhost";
    }, victim.url.origin);
    expect(victim.requests.slice(before)).toEqual([]);
    // The visit of a person still works: the answer of the hostile guest has removed nothing.
    await open(page, victim.url.origin);
    expect(victim.requests.at(-1)?.cookie).toBe("own-victim=1; wide-victim=1");
    await tab[Symbol.asyncDispose]();
  });

  test("shows a page that says why it gets nothing", async () => {
    const sandbox = gateway.add("empty");
    const { url } = await gateway.link(sandbox.id, await gateway.token());
    const tab = await browser.open(url.origin, {});
    tab.expectProblem(/Failed to load/);
    const answer = await tab.page.goto(url.origin);
    expect(answer?.status()).toBe(401);
    expect(await tab.page.textContent("p")).toContain("this address is private");
    await tab.page.goto(String(url));
    await until(
      "the page says so",
      async () => (await tab.page.textContent("body"))?.includes("port is not open") === true,
    );
    await tab[Symbol.asyncDispose]();
  });
});
