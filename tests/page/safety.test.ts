/** A real browser protects the page from pages of other ports, and from files of guests. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Api, send } from "../support/api/api.ts";
import { PageBrowser } from "../support/page/browser.ts";
import { signIn } from "../support/page/scene.ts";
import type { Tab } from "../support/page/tab.ts";
import { becomes } from "../support/page/waits.ts";

const HOSTILE = "document.title = 'taken'; self.taken = true;";
const MARKUP = `<!doctype html><title>taken</title><script>${HOSTILE}</script>`;
const FILES = {
  "a.js": HOSTILE,
  "a.html": MARKUP,
  "a.svg": `<svg xmlns="http://www.w3.org/2000/svg"><script>${HOSTILE}</script></svg>`,
};

let api: Api;
let browser: PageBrowser;
let image: string;
/** a web server on another port of this host, such as a guest's behind `coppice forward` */
let neighbour: Bun.Server<undefined>;
let cookies: string[] = [];
beforeAll(async () => {
  api = await Api.start();
  const fixtures = Object.entries(FILES).map(([path, content]) => ({ path, type: "f" as const, content }));
  image = await api.addImage([fixtures], { tag: "base" });
  browser = await PageBrowser.start();
  neighbour = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch({ headers }) {
      cookies.push(headers.get("cookie") ?? "");
      return new Response("<!doctype html><title>neighbour</title>", { headers: { "content-type": "text/html" } });
    },
  });
});
afterAll(async () => {
  await browser[Symbol.asyncDispose]();
  await neighbour.stop(true);
  await api[Symbol.asyncDispose]();
});

/** A tab with a session. */
async function signedIn(): Promise<Tab> {
  const tab = await browser.open(api.url, { neighbours: [neighbour.url.origin] });
  await tab.page.goto("/");
  await signIn(tab, api.token);
  return tab;
}
const keyOf = ({ page }: Tab): Promise<string> => page.evaluate(() => localStorage.getItem("coppice.csrf") ?? "");
const sessionsWork = async ({ page }: Tab): Promise<boolean> => {
  const response = page.waitForResponse(/\/web\/session$/);
  await page.goto("/");
  return (await response).ok();
};

describe("a page of another port of this host", () => {
  test("gets the cookie, which proves nothing without the page's own half", async () => {
    await using tab = await signedIn();
    cookies = [];
    await tab.page.goto(neighbour.url.href);
    const cookie = cookies.find((line) => line.includes("coppice-")) ?? "";
    expect(cookie).not.toBe("");
    expect(await tab.page.evaluate(() => [document.cookie, localStorage.length])).toEqual(["", 0]);
    for (const path of ["/web/session", "/web/api/v1/images"]) {
      expect((await send(`${api.url}${path}`, "GET", { headers: { cookie } })).status).toBe(401);
    }
    expect(await sessionsWork(tab)).toBe(true);
  });

  test("can neither read nor change anything, even if it knew both halves", async () => {
    await using tab = await signedIn();
    tab.expectProblem(/CORS|NotSameOrigin|ERR_FAILED|WebSocket|blocked|violat|frame/i);
    const key = await keyOf(tab);
    await tab.page.goto(neighbour.url.href);
    const outcomes = await tab.page.evaluate(
      async ({ base, csrf, path }) => {
        const outcomeOf = (work: Promise<Response>) =>
          work.then(
            ({ type, status }) => `${type} ${status}`,
            () => "failed",
          );
        const loaded = (element: HTMLElement & { src?: string }, address: string) =>
          new Promise<string>((resolve) => {
            element.onload = () => resolve("loaded");
            element.onerror = () => resolve("failed");
            element.src = address;
            document.body.append(element);
          });
        const link = `${base}/web/api/~${csrf}${path}`;
        const socket = (address: string) =>
          new Promise<string>((resolve) => {
            const raw = new WebSocket(address.replace("http", "ws"), ["v5.channel.k8s.io"]);
            raw.onopen = () => resolve("open");
            raw.onerror = () => resolve("failed");
          });
        const include = { credentials: "include" } as const;
        return {
          read: await outcomeOf(fetch(`${base}/web/api/v1/images`, include)),
          link: await outcomeOf(fetch(link, include)),
          opaque: await outcomeOf(fetch(link, { ...include, mode: "no-cors" })),
          asked: await outcomeOf(
            fetch(`${base}/web/session`, { ...include, method: "DELETE", headers: { "x-csrf-token": csrf } }),
          ),
          script: await loaded(document.createElement("script"), link),
          picture: await loaded(document.createElement("img"), link),
          socket: await socket(
            `${base}/web/api/~${csrf}/v1/instances/0197a1d0-5a5e-7000-8000-3c6e0b8a9c15/processes/1/attach`,
          ),
        };
      },
      { base: api.url, csrf: key, path: `/v1/inspect/${image}/download?path=/a.js` },
    );
    const failed = Object.fromEntries(Object.keys(outcomes).map((name) => [name, "failed"]));
    expect(outcomes).toEqual(failed as typeof outcomes);
    expect(await tab.page.title()).toBe("neighbour");
    expect(await sessionsWork(tab)).toBe(true);
  });

  test("cannot send a form that counts, frame the page, or hold a window of it", async () => {
    await using tab = await signedIn();
    tab.expectProblem(/frame|X-Frame-Options|violat|blocked|ERR_BLOCKED/i);
    await tab.page.goto(neighbour.url.href);
    const sent = tab.page.context().waitForEvent("page");
    await tab.page.evaluate((action) => {
      const form = Object.assign(document.createElement("form"), {
        action,
        method: "post",
        target: "_blank",
        enctype: "text/plain",
      });
      const field = Object.assign(document.createElement("input"), { name: '{"token":"x","y":"', value: '"}' });
      form.append(field);
      document.body.append(form);
      form.submit();
    }, `${api.url}/web/session`);
    const answer = await sent;
    await answer.waitForLoadState();
    expect(await answer.textContent("body")).toContain('"forbidden"');
    const refused = tab.page.waitForEvent("requestfailed", (request) => request.url() === `${api.url}/`);
    await tab.page.evaluate(
      (src) => document.body.append(Object.assign(document.createElement("iframe"), { src })),
      `${api.url}/`,
    );
    expect((await refused).failure()?.errorText).toBe("net::ERR_BLOCKED_BY_RESPONSE");
    expect(tab.page.frames().some((frame) => frame.url() === `${api.url}/`)).toBe(false);
    const opened = tab.page.context().waitForEvent("page");
    const isHeld = await tab.page.evaluateHandle((address) => window.open(address), `${api.url}/`);
    const popup = await opened;
    await popup.getByLabel(/token/i).or(popup.getByRole("navigation")).first().waitFor();
    expect(await popup.evaluate(() => window.opener)).toBeNull();
    await becomes(() => isHeld.evaluate((held) => held?.closed), true);
    expect(await sessionsWork(tab)).toBe(true);
  });
});

describe("a guest's file", () => {
  test("is never a script, a worker or a frame of this origin, even without the policy of the page", async () => {
    await using tab = await signedIn();
    tab.expectProblem(/MIME|Failed to load|bad HTTP response code/i);
    const key = await keyOf(tab);
    await tab.page.goto("/healthz");
    const base = `/web/api/~${key}/v1/inspect/${image}/download?path=/`;
    const outcomes = await tab.page.evaluate(async (address) => {
      const settled = (element: HTMLElement & { src?: string }, src: string) =>
        new Promise<string>((resolve) => {
          element.onload = () => resolve("loaded");
          element.onerror = () => resolve("failed");
          element.src = src;
          document.body.append(element);
        });
      const attempt = (work: () => Promise<unknown>) =>
        Promise.resolve()
          .then(work)
          .then(
            () => "ran",
            () => "failed",
          );
      const worker = (src: string) =>
        new Promise<string>((resolve) => {
          const started = new Worker(src);
          started.onerror = () => resolve("failed");
          started.onmessage = () => resolve("ran");
        });
      return {
        script: await settled(document.createElement("script"), `${address}a.js`),
        picture: await settled(document.createElement("img"), `${address}a.svg`),
        module: await attempt(() => import(`${address}a.js`)),
        worker: await worker(`${address}a.js`),
        service: await attempt(() => navigator.serviceWorker.register(`${address}a.js`)),
      };
    }, base);
    const failed = Object.fromEntries(Object.keys(outcomes).map((name) => [name, "failed"]));
    expect(outcomes).toEqual(failed as typeof outcomes);
    const refused = tab.page.waitForEvent("requestfailed", (request) => request.url().endsWith("a.html"));
    await tab.page.evaluate(
      (src) => document.body.append(Object.assign(document.createElement("iframe"), { src })),
      `${base}a.html`,
    );
    await refused;
    expect(await tab.page.evaluate(() => "taken" in self)).toBe(false);
    expect(tab.page.frames().some((frame) => frame.url().includes("a.html"))).toBe(false);
  });

  test("cannot become markup or a script by a mistake of the page", async () => {
    await using tab = await signedIn();
    tab.expectProblem(/violat|Trusted/i);
    const outcomes = await tab.page.evaluate(() => {
      const attempts: Record<string, () => unknown> = {
        markup: () => Object.assign(document.createElement("div"), { innerHTML: "<b>" }),
        script: () => Object.assign(document.createElement("script"), { src: "/web/assets/x.js" }),
        text: () => Object.assign(document.createElement("script"), { text: "1" }),
        worker: () => new Worker("/web/assets/x.js"),
        policy: () => Reflect.get(globalThis, "trustedTypes").createPolicy("another", {}),
      };
      return Object.entries(attempts).flatMap(([name, attempt]) => {
        try {
          attempt();
          return [name];
        } catch {
          return [];
        }
      });
    });
    expect(outcomes).toEqual([]);
  });

  test.each(Object.keys(FILES))("%s is saved by its link, and never shown", async (name) => {
    await using tab = await signedIn();
    const link = `/web/api/~${await keyOf(tab)}/v1/inspect/${image}/download?path=/${name}`;
    const before = tab.page.url();
    const saved = tab.page.waitForEvent("download");
    await tab.page.evaluate((href) => Object.assign(document.createElement("a"), { href, download: "" }).click(), link);
    const path = await (await saved).path();
    expect(await Bun.file(path).text()).toBe(FILES[name as keyof typeof FILES]);
    const again = tab.page.waitForEvent("download");
    await tab.page.evaluate((href) => location.assign(href), link);
    await again;
    expect([tab.page.url(), await tab.page.title()]).toEqual([before, expect.not.stringContaining("taken")]);
  });
});
