import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { appendFile } from "node:fs/promises";
import { throwing } from "../support/failures.ts";
import { PageBrowser } from "../support/page/browser.ts";
import { PageScene } from "../support/page/scene.ts";
import { settled } from "../support/page/views.ts";
import { becomes } from "../support/page/waits.ts";

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

describe("the page", () => {
  test("sends requests only to its appliance, according to the browser's network log", async () => {
    {
      await using tab = await scene.signedIn("/");
      const { id } = await scene.appliance.run(scene.image, "echo hello; wget -T 1 http://192.0.2.1/ || true");
      const file = `/images/${scene.image}?view=files&path=%2Fetc%2Fprofile`;
      const image = `/images/${scene.image}`;
      const runs = ["/runs", `/runs/${id}`, `/runs/new?image=${scene.image}`];
      const appliance = [
        "/appliance",
        "/appliance/space",
        "/appliance/operations",
        "/appliance/tokens",
        "/appliance/health",
      ];
      for (const path of ["/", image, file, `${image}?view=history`, `${image}?view=search`, ...runs, ...appliance]) {
        await tab.page.goto(path);
        await settled(tab);
      }
      expect(tab.requests.length).toBeGreaterThan(20);
      expect(tab.outside).toEqual([]);
    }
    const { host } = new URL(scene.origin);
    const { requests, hints, connections } = await scene.browser.close(scene.origin);
    expect(requests.length).toBeGreaterThan(20);
    expect(requests.filter((address) => !isOwn(address, host))).toEqual([]);
    expect(hints.filter((address) => !isOwn(address, host))).toEqual([]);
    expect([...new Set(connections)]).toEqual([host]);
  });

  test("is caught if it sends another request, so that the first test proves something", async () => {
    await using browser = await PageBrowser.start();
    const tab = await browser.open(scene.origin);
    await tab.page.goto("/");
    await tab.page.getByLabel(/token/i).waitFor();
    tab.expectProblem(/violat|Content Security Policy|ERR_|Failed to fetch/i);
    await tab.page.evaluate(() => fetch("http://elsewhere.invalid/").catch(() => null));
    await becomes(() => tab.problems.join("\n").includes("connect-src"), true);
    // The policy blocks the fetch before it becomes a request; it does not cover navigation.
    await tab.page.goto("http://elsewhere.invalid/").catch(() => null);
    expect(tab.outside).toEqual(["http://elsewhere.invalid/"]);
    expect(await throwing(tab[Symbol.asyncDispose]())).toThrow("http://elsewhere.invalid/");
    const { requests } = await browser.close("http://elsewhere.invalid");
    expect(requests).toContain("http://elsewhere.invalid/");
  });

  test("does not exist if web.enabled is false: its addresses answer like unknown ones", async () => {
    await scene.appliance.down();
    await appendFile(scene.appliance.configFile, "\n[web]\nenabled = false\n");
    await scene.appliance.up();
    await using browser = await PageBrowser.start();
    await using tab = await browser.open(scene.origin);
    const unknown = await answer(scene.origin, "/no-such-thing");
    for (const path of [
      "/",
      "/images/x",
      "/runs",
      "/appliance",
      "/web/session",
      "/web/assets/main.js",
      "/web/api/v1/images",
    ]) {
      expect({ path, ...(await answer(scene.origin, path)) }).toEqual({ path, ...unknown });
    }
    await tab.page.goto("/");
    expect(await tab.page.locator("script, link").count()).toBe(0);
    expect((await scene.appliance.fetch("/images")).status).toBe(200);
  });
});

function isOwn(address: string, host: string): boolean {
  const url = new URL(address);
  return ["data:", "blob:"].includes(url.protocol) || url.host === host;
}

async function answer(origin: string, path: string): Promise<{ status: number; body: unknown; policy: string | null }> {
  const response = await fetch(`${origin}${path}`);
  const policy = response.headers.get("content-security-policy");
  return { status: response.status, body: await response.json(), policy };
}
