import { afterAll, beforeAll, expect, test } from "bun:test";
import { Client } from "../../src/client/client.ts";
import { Run } from "../../src/client/runs.ts";
import { PageScene } from "../support/page/scene.ts";

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

// A browser without a screen shows all its tabs at the same time, as windows do that stand side by side.
test("two windows with live runs and their figures leave connections to a third", async () => {
  const client = new Client({ url: scene.appliance.url, token: scene.appliance.token });
  const command = "echo begun; sleep 600";
  const run = await Run.start(client, { image: "tag:busybox", command, shell: true, disposable: true });
  await using tab = await scene.signedIn(`/runs/${run.id}?view=usage`);
  const context = tab.page.context();
  const windows = [tab.page, await context.newPage()];
  for (const page of windows) {
    await page.goto(`/runs/${run.id}?view=usage`);
    await page.locator(".run-chart-place canvas").nth(1).waitFor();
  }
  const third = await context.newPage();
  await third.goto("/?form=list");
  await third.getByText("busybox", { exact: true }).first().waitFor();
  expect(third.url()).toBe(`${scene.origin}/?form=list`);
  await run.cancel();
});
