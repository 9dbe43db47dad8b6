import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { PageScene } from "../support/page/scene.ts";
import type { Tab } from "../support/page/tab.ts";
import { settled, viewProblems } from "../support/page/views.ts";

/** A link for each view, in a state in which it has something to show. `{image}` and `{run}` are those of a run. */
const VIEWS: Readonly<Record<string, string>> = {
  branches: "/",
  "image-files": "/images/{image}?view=files&path=%2F",
  "image-file": "/images/{image}?view=files&path=%2Fetc%2Fprofile",
  "image-changes": "/images/{image}?view=changes",
  "image-diff": "/images/{image}?view=changes&path=%2Fetc%2Fprofile",
  "image-history": "/images/{image}?view=history",
  "image-search": "/images/{image}?view=search",
  "image-missing": "/images/00000000-0000-4000-8000-000000000000",
  runs: "/runs",
  run: "/runs/{run}",
  "run-failed": "/runs/{failed}",
  "run-missing": "/runs/00000000-0000-4000-8000-000000000000",
  "run-new": "/runs/new?image={image}",
  appliance: "/appliance",
  "appliance-space": "/appliance/space",
  "appliance-operations": "/appliance/operations",
  "appliance-tokens": "/appliance/tokens",
  "appliance-health": "/appliance/health",
  nothing: "/appliance/no-such-room",
};

let scene: PageScene;
let tab: Tab;
let ids: Readonly<Record<string, string>>;
beforeAll(async () => {
  scene = await PageScene.start();
  const run = await scene.appliance.spawn({
    image: scene.image,
    command:
      "echo 'export COLOUR=green' >> /etc/profile; mkdir -p /srv/site; echo hello | tee /srv/site/hello.txt; ls /nowhere; seq 200",
    shell: true,
  });
  const { result } = await scene.appliance.finished(run);
  const { image } = result as unknown as { image: string };
  const failed = await scene.appliance.spawn({ image, command: "/no/such/program" });
  await scene.appliance.finished(failed);
  const commands = ["echo one > /srv/site/one.txt", "echo two > /srv/site/two.txt; exit 4"];
  await Promise.all(commands.map((command) => scene.appliance.run(image, command)));
  ids = { image, run, failed };
  const token = await scene.appliance.createToken("tester", "--scope", "*", "--scope", "operator");
  tab = await scene.signedIn("/", { token });
});
afterAll(async () => {
  await using _scene = scene;
  await tab[Symbol.asyncDispose]();
});

describe("each view is accessible and fits, in both themes and at every width", () => {
  test.each(Object.entries(VIEWS))("%s", async (name, link) => {
    await tab.page.goto(link.replace(/\{(\w+)\}/g, (_, key: string) => ids[key] ?? ""));
    await settled(tab);
    expect(await tab.page.title()).toMatch(/Coppice/);
    expect(await tab.page.getByRole("heading", { level: 1 }).count()).toBe(1);
    expect(await viewProblems(tab, name)).toEqual([]);
  });
});
