import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { PageScene, signIn } from "../support/page/scene.ts";
import { viewProblems } from "../support/page/views.ts";

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

describe("the sign-in", () => {
  test("is what a stranger sees, and is accessible at every width in both themes", async () => {
    await using tab = await scene.tab();
    await tab.page.goto("/");
    await tab.page.getByLabel(/token/i).waitFor();
    expect(await tab.page.title()).toContain("Coppice");
    expect(await viewProblems(tab, "sign-in")).toEqual([]);
  });

  test("takes a token once, and shows the images of its account", async () => {
    await using tab = await scene.tab();
    await tab.page.goto("/");
    await signIn(tab, scene.appliance.token);
    await tab.page.getByText("busybox").first().waitFor();
    await tab.page.reload();
    await tab.page.getByText("busybox").first().waitFor();
    const kept = await tab.page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, location.href]));
    expect(kept).not.toContain(scene.appliance.token);
  });

  test("refuses a token that is none, and says so", async () => {
    await using tab = await scene.tab();
    await tab.page.goto("/");
    await tab.page.getByLabel(/token/i).fill("not a token");
    await tab.page.getByRole("button", { name: /^sign in$/i }).click();
    await tab.page.getByRole("alert").first().waitFor();
    expect(await tab.page.getByRole("navigation").count()).toBe(0);
  });
});
