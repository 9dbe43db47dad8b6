import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { choose, pressSequence, pressToRow, tabTo } from "../support/page/keys.ts";
import { PageScene } from "../support/page/scene.ts";
import { settled } from "../support/page/views.ts";
import { hasFocus } from "../support/page/waits.ts";

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

describe("the keyboard alone", () => {
  test("signs in, reads a file of an image, starts a run, watches and stops it, and signs out", async () => {
    await using tab = await scene.tab();
    const { page } = tab;
    const { keyboard } = page;
    await page.goto("/");
    await tabTo(tab, page.getByLabel(/token/i));
    await keyboard.type(scene.appliance.token);
    await keyboard.press("Enter");

    await page.getByRole("heading", { name: "Branches", level: 1 }).waitFor();
    await page.getByRole("treeitem").first().waitFor();
    await tabTo(tab, page.getByRole("tree"));
    await pressToRow(page, "Home");
    await keyboard.press("Enter");

    await page.getByRole("heading", { name: "busybox", level: 1 }).waitFor();
    await settled(tab);
    await tabTo(tab, page.getByRole("grid").or(page.getByRole("listbox")));
    await choose(tab, "etc");
    await page.getByText("profile").first().waitFor();
    await choose(tab, "profile");
    await page.getByText("export PATH=").first().waitFor();

    await tabTo(tab, page.getByRole("link", { name: "Run here" }), "Shift+Tab");
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "New run", level: 1 }).waitFor();
    await tabTo(tab, page.getByLabel("Command", { exact: true }));
    await keyboard.type("echo it runs; sleep 300");
    await tabTo(tab, page.getByRole("button", { name: "Run", exact: true }));
    await keyboard.press("Enter");

    await page.getByText("it runs", { exact: true }).first().waitFor();
    await tabTo(tab, page.getByRole("button", { name: "Stop", exact: true }));
    await keyboard.press("Enter");
    const question = page.getByRole("dialog");
    await tabTo(tab, question.getByRole("button", { name: "Stop", exact: true }));
    await keyboard.press("Enter");
    await page.getByText("Cancelled").first().waitFor();
    await question.waitFor({ state: "detached" });

    await tabTo(tab, page.getByRole("button", { name: /account tester/i }), "Shift+Tab");
    await keyboard.press("Enter");
    await page.getByRole("menuitem", { name: "Sign out" }).waitFor();
    await keyboard.press("End");
    await hasFocus(page.getByRole("menuitem", { name: "Sign out" }));
    await keyboard.press("Enter");
    await page.getByLabel(/token/i).waitFor();
  });

  test("walks the changes of an import, below a root that neither folds nor opens", async () => {
    await using tab = await scene.signedIn(`/images/${scene.image}?view=changes`);
    const { page } = tab;
    const compared = page.getByLabel("Compare with").locator("option:checked");
    await compared.filter({ hasText: "nothing: it has no parent" }).waitFor({ state: "attached" });
    const list = page.getByRole("grid", { name: "Differences" });
    const root = list.getByRole("row").filter({ hasText: /^\+added\/$/ });
    await root.waitFor();
    expect(await root.locator("a, button").count()).toBe(0);
    await tabTo(tab, list);
    await choose(tab, "+addedlinuxrc");
    await page.getByRole("article", { name: "Difference" }).getByText("/bin/busybox", { exact: true }).waitFor();
    // The next keys move in the list.
    await hasFocus(list);
    await choose(tab, "+addedetc");
    await page.waitForURL(/path=\/etc$/);
    await hasFocus(list);
    await tabTo(tab, page.getByRole("button", { name: "Close" }));
    await page.keyboard.press("Enter");
    await hasFocus(list);
  });

  test("skips the navigation, opens places by keys, and closes the help with the focus restored", async () => {
    await using tab = await scene.signedIn("/runs");
    const { page } = tab;
    const { keyboard } = page;
    await page.goto("/runs");
    await settled(tab);
    await keyboard.press("Tab");
    await hasFocus(page.getByRole("link", { name: "Skip to content" }));
    await keyboard.press("Enter");
    await hasFocus(page.getByRole("main"));

    for (const [key, heading] of [
      ["a", "Appliance"],
      ["b", "Branches"],
      ["r", "Runs"],
    ] as const) {
      await pressSequence(page, `g${key}`);
      await page.getByRole("heading", { name: heading, level: 1 }).waitFor();
    }

    const home = page.getByRole("link", { name: "Appliance" });
    await tabTo(tab, home, "Shift+Tab");
    await keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    await hasFocus(home);
  });
});
