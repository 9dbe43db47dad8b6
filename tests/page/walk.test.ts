/** The first steps of a person with a sandbox that serves a page: open, look, edit, break, roll back, leave and come back. */

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Page } from "playwright-core";
import { freePort } from "../support/free-port.ts";
import { choose } from "../support/page/keys.ts";
import { PageScene } from "../support/page/scene.ts";
import { becomes } from "../support/page/waits.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(240_000);

const SITE = "<!doctype html><title>site</title><h1>whole</h1>\n";
const SERVER = "httpd -f -p 127.0.0.1:8080 -h /srv/site";

let scene: PageScene;
beforeAll(async () => {
  const [api, ingress] = [await freePort(), await freePort()];
  // The addresses that a person has are the same after a restart.
  const flags = ["--listen-port", String(api), "--ingress-listen", `127.0.0.1:${ingress}`];
  scene = await PageScene.start({ flags, hosts: "*.localhost" });
});
afterAll(async () => {
  await scene?.[Symbol.asyncDispose]();
});

/** The output of a command. */
async function coppice(...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await scene.appliance.command(args);
  expect([args[0], code, stderr]).toEqual([args[0], 0, expect.any(String)]);
  return stdout;
}

/** The state that the head of the view shows. */
const shows = (page: Page, state: string) =>
  page.locator(".page-header-row + div").getByText(state, { exact: true }).waitFor();

/** Answers the question of a dialog, and waits until it is gone. */
async function answer(page: Page, action: string): Promise<void> {
  await page.getByRole("dialog").getByRole("button", { name: action, exact: true }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
}

test("a site in a sandbox is seen, broken, rolled back, left and found again", async () => {
  expect(await coppice("up", "tag:busybox", "--name", "dev")).toStartWith("dev  running\n");
  await scene.appliance.command(["cp", "-", "dev:/srv/site/index.html"], Buffer.from(SITE));
  expect(await coppice("exec", "-d", "dev", "--", ...SERVER.split(" "))).toBe("2\n");

  const { urls } = JSON.parse(await coppice("sandbox", "show", "dev", "--json")) as { urls: { pattern: string } };
  await using tab = await scene.signedIn("/sandboxes", { neighbours: [urls.pattern.replace("{port}", "8080")] });
  const { page } = tab;
  await page.getByRole("link", { name: "dev", exact: true }).click();
  await page.getByRole("link", { name: "Ports" }).click();
  await page.getByRole("button", { name: "Make a link" }).click();
  const opened = page.context().waitForEvent("page");
  await page.getByRole("link", { name: "Open in another tab" }).click();
  const site = await opened;
  const seen = async () => {
    await site.reload();
    const heading = site.locator("h1");
    return (await heading.count()) === 0 ? null : await heading.textContent();
  };
  await becomes(seen, "whole");
  // The secret of the link is in a cookie now.
  expect(new URL(site.url()).search).toBe("");

  await page.getByRole("link", { name: "Saved states" }).click();
  await page.getByRole("button", { name: "Checkpoint" }).click();
  await page.getByRole("dialog").getByLabel("Tag").fill("good");
  await answer(page, "Checkpoint");
  const head = page.locator("[aria-current=step]");
  await head.getByText("good", { exact: true }).waitFor();

  await page.getByRole("link", { name: "Files" }).click();
  await page.getByRole("grid", { name: "Files" }).focus();
  for (const name of ["srv", "site", "index.html"]) await choose(tab, name);
  const editor = page.getByRole("textbox", { name: /^Text of/ });
  await becomes(() => editor.inputValue(), SITE);
  await editor.fill(SITE.replace("whole", "broken"));
  await page.keyboard.press("Control+s");
  await page.getByText("as in the sandbox").waitFor();
  await becomes(seen, "broken");

  await page.getByRole("link", { name: "Saved states" }).click();
  await head.getByRole("button", { name: "Roll back to the head" }).click();
  await answer(page, "Roll back");
  await shows(page, "Running");
  await page.getByRole("link", { name: "Processes" }).click();
  await startAgain(page);
  await becomes(seen, "whole");

  await page.getByRole("button", { name: "Pause" }).click();
  await answer(page, "Pause");
  await shows(page, "Paused");
  tab.expectProblem(/ERR_|Failed to load resource/);
  await scene.appliance.down();
  await scene.appliance.up();
  await page.reload();
  await shows(page, "Paused");
  expect(await coppice("cat", "dev:/srv/site/index.html")).toBe(SITE);
  await page.getByRole("button", { name: "Resume" }).click();
  await shows(page, "Running");
  await startAgain(page);
  await becomes(seen, "whole");
  await coppice("down", "dev");
});

/** Starts the server again, whose newest process has ended with its machine. */
async function startAgain(page: Page): Promise<void> {
  const row = page.getByRole("row", { name: /httpd/ }).filter({ hasNotText: "Running" }).first();
  await row.getByRole("button").click();
  await page.getByRole("menuitem", { name: "Start again" }).click();
  await page.getByRole("row", { name: /httpd/ }).getByText("Running").waitFor();
}
