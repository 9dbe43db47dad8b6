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
  test("is the first view, and is accessible at every width in both themes", async () => {
    await using tab = await scene.tab();
    await tab.page.goto("/");
    await tab.page.getByLabel(/token/i).waitFor();
    expect(await tab.page.title()).toContain("Coppice");
    expect(await viewProblems(tab, "sign-in")).toEqual([]);
  });

  test("uses a token once: it is stored nowhere, and the session outlives the page", async () => {
    await using tab = await scene.tab();
    await tab.page.goto("/runs");
    await signIn(tab, scene.appliance.token);
    expect(new URL(tab.page.url()).pathname).toBe("/runs");
    await tab.page.reload();
    await tab.page.getByRole("navigation").first().waitFor();
    expect(await tab.page.getByLabel(/token/i).count()).toBe(0);
    const kept = await tab.page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, location.href]));
    expect(kept).not.toContain(scene.appliance.token);
  });

  test("appears when the session was ended elsewhere, and returns to the same link", async () => {
    await using tab = await scene.signedIn("/appliance");
    const signedOut = await tab.page.evaluate(async () => {
      const csrf = localStorage.getItem("coppice.csrf") ?? "";
      return (await fetch("/web/session", { method: "DELETE", headers: { "x-csrf-token": csrf } })).status;
    });
    expect(signedOut).toBe(204);
    await tab.page.goto("/appliance/space");
    await signIn(tab, scene.appliance.token);
    expect(new URL(tab.page.url()).pathname).toBe("/appliance/space");
  });

  test("to another account, in another tab, leaves nothing of the previous one", async () => {
    await using tab = await scene.signedIn("/");
    const { page } = tab;
    await page.getByRole("treeitem").getByText("busybox", { exact: true }).waitFor();
    const other = await page.context().newPage();
    await other.goto("/");
    await other.evaluate(
      async (token) => {
        const headers = { "content-type": "application/json" };
        const body = JSON.stringify({ token });
        const answer = await fetch("/web/session", { method: "POST", headers, body });
        localStorage.setItem("coppice.csrf", ((await answer.json()) as { csrf: string }).csrf);
      },
      await scene.appliance.createToken("another", "--scope", "*"),
    );
    await page.getByText("No images yet").waitFor();
    expect(await page.getByRole("treeitem").count()).toBe(0);
  });

  test("refuses an invalid token, with a message", async () => {
    await using tab = await scene.tab();
    await tab.page.goto("/");
    await tab.page.getByLabel(/token/i).fill("not a token");
    await tab.page.getByRole("button", { name: /^sign in$/i }).click();
    await tab.page.getByRole("alert").first().waitFor();
    expect(await tab.page.getByRole("navigation").count()).toBe(0);
  });
});
