import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { pressSequence } from "../support/page/keys.ts";
import { PageScene, signIn } from "../support/page/scene.ts";
import type { Tab } from "../support/page/tab.ts";
import { viewProblems } from "../support/page/views.ts";
import { becomes, drawn, hasFocus } from "../support/page/waits.ts";

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

const current = ({ page }: Tab) => page.getByRole("navigation", { name: "Main" }).locator("[aria-current=page]");

describe("the frame", () => {
  test("opens every place by keys, and marks the present one", async () => {
    await using tab = await scene.signedIn("/appliance");
    const { page } = tab;
    await current(tab).getByText("Appliance").waitFor();
    await pressSequence(page, "gr");
    await page.waitForURL("**/runs");
    await current(tab).getByText("Runs").waitFor();
    await hasFocus(page.getByRole("main"));
    await pressSequence(page, "gb");
    await page.waitForURL((url) => url.pathname === "/");
    await page.goBack();
    await current(tab).getByText("Runs").waitFor();
  });

  test("skips to the content, and shows the focus at every stop", async () => {
    await using tab = await scene.signedIn("/appliance");
    const { page } = tab;
    await page.reload();
    await page.getByRole("navigation", { name: "Main" }).waitFor();
    await page.keyboard.press("Tab");
    await hasFocus(page.getByRole("link", { name: "Skip to content" }));
    for (let stop = 0; stop < 7; stop += 1) {
      const before = await page.evaluateHandle(() => document.activeElement);
      const style = await page.evaluate(() => {
        const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement ?? document.body);
        return `${outlineStyle} ${outlineWidth}`;
      });
      expect(style).toBe("solid 2px");
      await page.keyboard.press("Tab");
      await page.waitForFunction((last) => document.activeElement !== last, before);
    }
    await page.getByRole("link", { name: "Skip to content" }).focus();
    await page.keyboard.press("Enter");
    await hasFocus(page.getByRole("main"));
  });

  test("lists its keys, which can be turned off, and restores the focus", async () => {
    await using tab = await scene.signedIn("/appliance");
    const { page } = tab;
    const runs = page.getByRole("link", { name: "Runs" });
    await runs.focus();
    await page.keyboard.press("?");
    const dialog = page.getByRole("dialog", { name: "Keyboard shortcuts" });
    await dialog.getByText("Go to branches").waitFor();
    expect(await viewProblems(tab, "keys")).toEqual([]);
    // Shortcuts are off while a dialog is open.
    await pressSequence(page, "gb");
    await drawn(page);
    expect(new URL(page.url()).pathname).toBe("/appliance");
    await dialog.getByLabel("Single-key shortcuts").uncheck();
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    await hasFocus(runs);
    await pressSequence(page, "?gb");
    await drawn(page);
    expect(new URL(page.url()).pathname).toBe("/appliance");
    expect(await dialog.count()).toBe(0);
  });

  test("keeps the theme chosen in its menu by keys", async () => {
    await using tab = await scene.signedIn("/appliance", { theme: "light" });
    const { page } = tab;
    const background = async () =>
      await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const light = await background();
    const menu = page.getByRole("menu");
    await page.getByRole("button", { name: "Account" }).focus();
    await page.keyboard.press("ArrowDown");
    await menu.waitFor();
    await page.keyboard.press("d");
    await hasFocus(menu.getByRole("menuitemradio", { name: "Dark theme" }));
    await page.keyboard.press("Enter");
    await menu.waitFor({ state: "detached" });
    await hasFocus(page.getByRole("button", { name: "Account" }));
    const dark = await background();
    expect(dark).not.toBe(light);
    await page.reload();
    await page.getByRole("navigation", { name: "Main" }).waitFor();
    await becomes(background, dark);
    await page.getByRole("button", { name: "Account" }).click();
    await menu.waitFor();
    expect(await viewProblems(tab, "menu")).toEqual([]);
    await menu.getByText("System theme").click();
    await becomes(background, light);
  });

  test("reports a link without a view", async () => {
    await using tab = await scene.signedIn("/images/one/too/many");
    await tab.page.getByRole("heading", { level: 1, name: "Page not found" }).waitFor();
    await becomes(() => tab.page.title(), "Page not found · Coppice");
    await tab.page.getByRole("link", { name: "Go to branches" }).click();
    await tab.page.waitForURL((url) => url.pathname === "/");
  });
});

describe("a session", () => {
  test("that ends in one tab ends in the other, and begins again at the link", async () => {
    await using tab = await scene.signedIn("/appliance");
    const { page } = tab;
    const other = await page.context().newPage();
    await other.goto("/runs?status=FAILED");
    await other.getByRole("navigation", { name: "Main" }).waitFor();
    await page.getByRole("button", { name: "Account" }).click();
    await page.getByRole("menuitem", { name: "Sign out" }).click();
    await page.getByLabel("Token").waitFor();
    await other.getByText("Your session has ended.").waitFor();
    await other.getByLabel("Token").fill(scene.appliance.token);
    await other.getByRole("button", { name: "Sign in" }).click();
    await other.getByRole("navigation", { name: "Main" }).waitFor();
    expect(new URL(other.url()).search).toBe("?status=FAILED");
    // The first tab notices that as well.
    await page.getByRole("navigation", { name: "Main" }).waitFor();
  });

  test("ends with its token, without an action of the user", async () => {
    const { appliance } = scene;
    const token = await appliance.createToken("tester");
    await using tab = await scene.signedIn("/appliance", { token });
    const id = JSON.parse(atob((token.split(".")[1] ?? "").replace(/-/g, "+").replace(/_/g, "/"))).jti as string;
    const { code } = await appliance.command(["token", "revoke", "--config", appliance.configFile, id]);
    expect(code).toBe(0);
    await tab.page.getByText("Your session has ended.").waitFor();
    await signIn(tab, appliance.token);
    expect(new URL(tab.page.url()).pathname).toBe("/appliance");
  });
});

describe("a view whose chunk is gone", () => {
  /** Answers 404 for every script while `isGone` returns true. */
  async function loseChunks({ page }: Tab, isGone: () => boolean): Promise<void> {
    await page.route("**/web/assets/*.js", async (route) => {
      if (isGone()) await route.fulfill({ status: 404 });
      else await route.continue();
    });
  }

  test("because the appliance was upgraded reloads the page, once, at its link", async () => {
    await using tab = await scene.signedIn("/appliance");
    const { page } = tab;
    tab.expectProblem(/404|dynamically imported module/);
    await current(tab).getByText("Appliance").waitFor();
    let documents = 0;
    page.on("request", (request) => {
      documents += request.isNavigationRequest() ? 1 : 0;
    });
    await loseChunks(tab, () => documents === 0);
    await pressSequence(page, "gr");
    await page.getByRole("heading", { level: 1, name: "Runs" }).waitFor();
    expect(new URL(page.url()).pathname).toBe("/runs");
    expect(documents).toBe(1);
  });

  test("for good gives a message in place of the view, and does not reload the page forever", async () => {
    await using tab = await scene.signedIn("/appliance");
    const { page } = tab;
    tab.expectProblem(/404|dynamically imported module/);
    await current(tab).getByText("Appliance").waitFor();
    let documents = 0;
    page.on("request", (request) => {
      documents += request.isNavigationRequest() ? 1 : 0;
    });
    // The index page and its script exist, but not the chunk of the view.
    const names = new Set(await page.evaluate(() => [...document.scripts].map(({ src }) => src)));
    await page.route("**/web/assets/*.js", async (route) => {
      if (names.has(route.request().url())) await route.continue();
      else await route.fulfill({ status: 404 });
    });
    await pressSequence(page, "gr");
    await page.getByRole("heading", { level: 1, name: "This view failed" }).waitFor();
    await page.getByRole("button", { name: "Reload the page" }).waitFor();
    expect(documents).toBe(1);
  });
});

describe("an appliance that restarts", () => {
  test("gives one quiet line, and everything continues by itself when it is back", async () => {
    const { appliance } = scene;
    await using tab = await scene.signedIn("/appliance");
    // The message of a browser for a closed port.
    tab.expectProblem(/ERR_|Failed to load resource/);
    const line = tab.page.getByText("The appliance does not answer.");
    appliance.flags = ["--listen-port", new URL(appliance.url).port];
    await appliance.down();
    await line.first().waitFor();
    await appliance.up();
    await line.first().waitFor({ state: "detached" });
    await current(tab).getByText("Appliance").waitFor();
  });
});
