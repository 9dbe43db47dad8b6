/** A user types faster than the page draws, or leaves while it loads: no key is lost or undone, and the focus does not jump. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { activeOf, branchLines } from "../support/page/branches.ts";
import { choose, pressAtOnce, pressToRow } from "../support/page/keys.ts";
import { PageScene, signIn } from "../support/page/scene.ts";
import { settled } from "../support/page/views.ts";
import { becomes, drawn, hasFocus, held } from "../support/page/waits.ts";

let scene: PageScene;
/** image with files of lines, and a run that made it */
let fixture: { readonly image: string; readonly run: string };
beforeAll(async () => {
  scene = await PageScene.start();
  const command = "mkdir /root/few; seq 100 > /root/few/lines; echo more > /root/few/more";
  const run = await scene.appliance.spawn({ image: scene.image, command, shell: true });
  const { result } = await scene.appliance.finished(run);
  fixture = { image: (result as unknown as { image: string }).image, run };
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

describe("the frame", () => {
  test("has the menu ready for the next key", async () => {
    await using tab = await scene.signedIn("/appliance", { theme: "light" });
    await tab.page.getByRole("button", { name: "Account" }).focus();
    await pressAtOnce(tab.page, ["ArrowDown", "d", "Enter"]);
    await tab.page.locator("html[data-theme=dark]").waitFor();
  });

  test("moves the focus to a new place before the next key, and leaves it in a field of that place", async () => {
    await using tab = await scene.signedIn("/runs");
    const { page } = tab;
    await page.getByRole("link", { name: "New run" }).focus();
    await pressAtOnce(page, ["Enter"]);
    await hasFocus(page.getByLabel("Image"));
    await drawn(page);
    await hasFocus(page.getByLabel("Image"));
    await page.evaluate(async () => {
      const [, ...places] = document.querySelectorAll<HTMLElement>(".bar-places a");
      places[0]?.click();
      for (let turn = 0; turn < 20; turn++) await null;
      places.at(-1)?.focus();
    });
    await page.waitForURL("**/sandboxes");
    await drawn(page);
    await hasFocus(page.getByRole("link", { name: "Appliance" }));
  });

  test("leaves the focus when a form loads late", async () => {
    await using tab = await scene.signedIn("/runs");
    const { page } = tab;
    const goOn = await held(page, /\/request$/);
    await page.goto(`/runs/new?from=${fixture.run}`);
    await page.getByRole("link", { name: "Appliance" }).focus();
    goOn();
    await page.getByLabel("Command", { exact: true }).waitFor();
    await drawn(page);
    await hasFocus(page.getByRole("link", { name: "Appliance" }));
  });
});

describe("the branches", () => {
  test("are restored by Back, also after two keys at once", async () => {
    await using tab = await scene.signedIn(`/?image=${scene.image}`);
    const { page } = tab;
    await page.locator(`[data-key="${fixture.image}"]`).waitFor();
    await page.getByRole("tree").focus();
    await pressAtOnce(page, ["ArrowRight", "Enter"]);
    await page.waitForURL(`**/images/${fixture.image}`);
    await page.goBack();
    await page.waitForURL((url) => url.searchParams.get("image") === fixture.image);
    await becomes(() => activeOf(page), fixture.image);
  });

  test("write no pending change into a new address", async () => {
    await using tab = await scene.signedIn(`/?image=${scene.image}`);
    const { page } = tab;
    await page.locator(`[data-key="${fixture.image}"]`).waitFor();
    await page.getByRole("button", { name: "List" }).click();
    await page.waitForURL(/form=list/);
    await page.getByRole("searchbox").focus();
    await pressAtOnce(page, [], "seq");
    await page.evaluate(() => history.back());
    await page.waitForURL((url) => !url.searchParams.has("form"));
    await becomes(() => page.getByRole("searchbox").inputValue(), "");
    await page.getByRole("tree").focus();
    await pressToRow(page, "ArrowRight");
    await page.waitForURL((url) => url.searchParams.get("image") === fixture.image);
    expect(new URL(page.url()).searchParams.has("q")).toBe(false);
  });

  test("go to the match when Enter is pressed before the search ends", async () => {
    await using tab = await scene.signedIn("/");
    const { page } = tab;
    await page.locator(`[data-key="${fixture.image}"]`).waitFor();
    await page.getByRole("searchbox").focus();
    await pressAtOnce(page, ["Enter"], "mkdir");
    await page.waitForURL((url) => url.searchParams.get("image") === fixture.image);
    await becomes(() => activeOf(page), fixture.image);
  });

  test("let keys move on from a chain that is being unfolded", async () => {
    await using tab = await scene.tab();
    const { page } = tab;
    await page.route(/\/v1\/branches$/, (route) =>
      route.fulfill({ status: 200, contentType: "application/x-ndjson", body: branchLines(205) }),
    );
    await page.goto("/");
    await signIn(tab, scene.appliance.token);
    await settled(tab);
    const steps = page.getByRole("treeitem").filter({ hasText: /^\d+ steps/ });
    await steps.click();
    await page.getByRole("tree").focus();
    await pressToRow(page, "ArrowRight");
    const next = await activeOf(page);
    await pressToRow(page, "ArrowLeft");
    await pressAtOnce(page, [" ", "ArrowRight"]);
    await steps.waitFor({ state: "detached" });
    await drawn(page);
    expect(await activeOf(page)).toBe(next);
  });
});

describe("an image", () => {
  test("goes up again while a directory is still loading", async () => {
    await using tab = await scene.signedIn(`/images/${fixture.image}?view=files&path=/root`);
    const { page } = tab;
    const files = page.getByRole("grid", { name: "Files" });
    await files.focus();
    const goOn = await held(page, /path=%2Froot%2Ffew/);
    await choose(tab, "few");
    await page.waitForURL(/path=\/root\/few$/);
    await page.keyboard.press("Backspace");
    await page.waitForURL(/path=\/root$/);
    await files.locator("[aria-selected=true]").filter({ hasText: "few" }).waitFor();
    await hasFocus(files);
    goOn();
  });

  test("keeps a letter that is typed when the filter goes into the link", async () => {
    await using tab = await scene.signedIn(`/images/${fixture.image}?view=files&path=/root`);
    const { page } = tab;
    const field = page.getByLabel("Filter by name");
    await field.fill("fe");
    await field.evaluate((input: HTMLInputElement) => {
      const replace = history.replaceState.bind(history);
      history.replaceState = (...all) => {
        replace(...all);
        history.replaceState = replace;
        void (async () => {
          for (let turn = 0; turn < 20; turn++) await null;
          input.value = "few";
          input.dispatchEvent(new InputEvent("input", { bubbles: true }));
        })();
      };
    });
    await page.waitForURL(/filter=few$/);
    expect(await field.inputValue()).toBe("few");
  });

  test("keeps the effect of a key in the differences while they load", async () => {
    await using tab = await scene.signedIn(`/images/${fixture.image}?view=changes`);
    const { page } = tab;
    const tree = page.getByRole("grid", { name: "Differences" });
    await page.getByRole("link", { name: "lines" }).click();
    const difference = page.getByRole("article", { name: "Difference" });
    await difference.waitFor();
    await tree.focus();
    await pressToRow(page, "ArrowDown");
    await pressAtOnce(page, ["Enter", "ArrowUp"]);
    await page.waitForURL(/path=\/root\/few\/more$/);
    await drawn(page);
    await tree.locator("[aria-selected=true]").filter({ hasText: "lines" }).waitFor();
  });

  test("keeps the active line and byte when the window changes", async () => {
    const link = `/images/${fixture.image}?view=files&path=/root/few/lines`;
    await using tab = await scene.signedIn(`${link}&line=3`);
    const { page } = tab;
    const active = page.locator("[aria-selected=true]");
    await active.filter({ hasText: /^33$/ }).waitFor();
    await page.getByRole("grid", { name: "Lines" }).focus();
    await pressToRow(page, "ArrowDown");
    await page.getByLabel("Wrap lines").check();
    await page.setViewportSize({ width: 600, height: 800 });
    await drawn(page);
    await active.filter({ hasText: /^44$/ }).waitFor();
    await page.goto(`${link}&as=hex`);
    const bytes = page.getByRole("grid", { name: "Bytes" });
    await bytes.locator(".image-bytes").nth(2).waitFor();
    await bytes.focus();
    await pressToRow(page, "ArrowDown");
    await pressToRow(page, "ArrowDown");
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.locator(".image-hex-16").waitFor();
    await drawn(page);
    await page.locator("output").filter({ hasText: "0x10 · 16" }).waitFor();
  });
});

test("the next line is written while one is sent to a command", async () => {
  const command = "while read line; do echo got $line; done";
  const run = await scene.appliance.spawn({ image: scene.image, command, shell: true, stdin_open: true });
  await using tab = await scene.signedIn(`/runs/${run}`);
  const { page } = tab;
  const field = page.getByRole("textbox", { name: "Standard input" });
  await field.fill("one");
  const goOn = await held(page, /\/stdin$/);
  await page.keyboard.press("Enter");
  await becomes(() => field.inputValue(), "");
  await page.keyboard.type("two");
  goOn();
  await page.getByText("got one", { exact: true }).waitFor();
  await page.locator(".run-input [aria-busy=true]").first().waitFor({ state: "detached" });
  expect(await field.inputValue()).toBe("two");
  await page.keyboard.press("Enter");
  await page.getByText("got two", { exact: true }).waitFor();
  await scene.appliance.fetch(`/operations/${run}`, { method: "DELETE" });
});
