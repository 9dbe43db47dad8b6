import { afterAll, beforeAll, expect, test } from "bun:test";
import { type HostileImage, hostileImage } from "../support/page/hostile-image.ts";
import { PageScene } from "../support/page/scene.ts";
import { viewProblems } from "../support/page/views.ts";

let scene: PageScene;
let image: HostileImage;
beforeAll(async () => {
  scene = await PageScene.start();
  image = await hostileImage(scene);
}, 300_000);
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

const at = (query: string): string => `/images/${image.changed}?${query}`;

test("a directory and a file tell who changed them", async () => {
  await using tab = await scene.signedIn(at("view=files&path=/srv"));
  const { page } = tab;
  const changes = page.getByRole("list", { name: "Changes of this path" }).getByRole("listitem");
  await page.getByText("Who changed this").click();
  await changes.first().getByText("changed below").waitFor();
  expect(await changes.last().textContent()).toContain("added");
  expect(await viewProblems(tab, "image-path-history")).toEqual([]);
  await page.goto(at("view=files&path=/srv/r%FFw"));
  await page.getByText("Who changed this").press("Enter");
  await changes.first().getByText("added").waitFor();
  await changes.first().getByRole("link", { name: "Import" }).waitFor();
});
