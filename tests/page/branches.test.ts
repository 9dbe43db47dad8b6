import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Locator, Page, WebSocketRoute } from "playwright-core";
import { activeOf, branchLines, changeEvents, startedRun, uuidOf } from "../support/page/branches.ts";
import { pressToRow } from "../support/page/keys.ts";
import { PageScene } from "../support/page/scene.ts";
import type { Tab, TabOptions } from "../support/page/tab.ts";
import { settled, viewProblems } from "../support/page/views.ts";
import { becomes, hasFocus } from "../support/page/waits.ts";
import { until } from "../support/waiting.ts";

/** Nodes that the document may have at once. */
const NODES_MAX = 300;
const MANY = 10_000;

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

const open = async (path = "/", options: TabOptions & { readonly token?: string } = {}): Promise<Tab> => {
  const tab = await scene.signedIn(path, options);
  await settled(tab);
  return tab;
};
const treeOf = (page: Page): Locator => page.getByRole("tree", { name: "Branches" });
const node = (page: Page, id: string): Locator => page.locator(`[data-key="${id}"]`);

/** Waits until a whole node is within the view. */
async function isSeen(page: Page, id: string): Promise<void> {
  await node(page, id).waitFor();
  await page.waitForFunction((key) => {
    const view = document.querySelector("[role=tree]")?.getBoundingClientRect();
    const box = document.querySelector(`[data-key="${key}"]`)?.getBoundingClientRect();
    if (view === undefined || box === undefined) return false;
    return box.left >= view.left && box.right <= view.right && box.top >= view.top && box.bottom <= view.bottom;
  }, id);
}

/** The image of the result of a command. */
async function imageOf(image: string, command: string): Promise<string> {
  const { result } = await scene.appliance.finished(await scene.appliance.spawn({ image, command, shell: true }));
  return (result as unknown as { image: string }).image;
}

/** A tab with mocked branches. */
async function openWith(lines: string, path = "/", options: TabOptions = {}): Promise<Tab> {
  const tab = await scene.tab(options);
  await tab.page.route(/\/v1\/branches$/, (route) =>
    route.fulfill({ status: 200, contentType: "application/x-ndjson", body: lines }),
  );
  await tab.page.goto(path);
  await tab.page.getByLabel(/token/i).fill(scene.appliance.token);
  await tab.page.getByRole("button", { name: "Sign in" }).click();
  await settled(tab);
  return tab;
}

describe("the tree", () => {
  test("marks the choice also in forced colours", async () => {
    await using tab = await open(`/?image=${scene.image}`);
    const { page } = tab;
    const outline = (of: Locator) => of.evaluate((element) => getComputedStyle(element).outlineStyle);
    await page.emulateMedia({ forcedColors: "active" });
    expect(await outline(page.getByRole("button", { name: "Tree", exact: true }))).toBe("solid");
    expect(await outline(page.getByRole("button", { name: "List" }))).toBe("none");
    expect(await outline(page.locator(".branches-active"))).toBe("solid");
  });

  test("is requested once, before the session is known", async () => {
    await using tab = await open();
    const { page } = tab;
    const asked = Promise.withResolvers<void>();
    let requests = 0;
    page.on("request", (request) => {
      if (!new URL(request.url()).pathname.endsWith("/v1/branches")) return;
      requests += 1;
      asked.resolve();
    });
    await page.route("**/web/session", async (route) => {
      await asked.promise;
      await route.continue();
    });
    await page.reload();
    await node(page, scene.image).waitFor();
    await settled(tab);
    expect(requests).toBe(1);
    // The images loaded by then still change.
    const child = await imageOf(scene.image, "echo child > /root/child");
    await node(page, child).waitFor();
    expect(requests).toBe(1);
  });

  test("is reloaded after many changes, so that none of them is kept forever", async () => {
    await using tab = await open("/runs");
    const { page } = tab;
    let requests = 0;
    page.on("request", (request) => {
      requests += new URL(request.url()).pathname.endsWith("/v1/branches") ? 1 : 0;
    });
    let stream: WebSocketRoute | null = null;
    await page.routeWebSocket(/\/v1\/changes/, (socket) => {
      stream = socket;
    });
    const tell = (changes: readonly object[]): void => stream?.send(changeEvents(changes));
    const deleted = (count: number) =>
      Array.from({ length: count }, (_, at) => ({ type: "deleted", uuid: uuidOf(at) }));
    await page.goto("/");
    // The stream is silent: after a while, the page loads without it.
    await node(page, scene.image).waitFor();
    await until("the stream is open", () => stream !== null);
    // The run marks the end of the changes: the page has handled all of them. The appliance has no such run.
    const [first, last] = [startedRun(20_000, scene.image), startedRun(20_001, scene.image)];
    tell([{ type: "resync" }, first]);
    await node(page, first.uuid).waitFor();
    await settled(tab);
    const loads = requests;
    tell([...deleted(9_998), last]);
    await node(page, last.uuid).waitFor();
    expect(requests).toBe(loads);
    tell(deleted(1));
    await node(page, last.uuid).waitFor({ state: "detached" });
    await node(page, scene.image).waitFor();
    expect(requests).toBe(loads + 1);
  });

  test("is neither awaited nor retried with a token that may not read images", async () => {
    const token = await scene.appliance.createToken("tester", "--scope", "operations:read");
    await using tab = await open("/", { token });
    await tab.page.getByText("The token of this session lacks the scope images:read.").waitFor();
    for (const name of ["Try again", "Import an image", "Unfold all"]) {
      expect(await tab.page.getByRole("button", { name }).count()).toBe(0);
    }
    await tab.page.goto("/runs");
    await settled(tab);
    expect(await tab.page.getByRole("link", { name: "New run" }).count()).toBe(0);
    await tab.page.goto(`/runs/new?image=${scene.image}`);
    await tab.page.getByText("The token of this session lacks the scope files:write.").waitFor();
    expect(await tab.page.getByRole("button", { name: "Choose files" }).isDisabled()).toBe(true);
    await hasFocus(tab.page.getByRole("textbox", { name: "Command" }));
  });

  test("reports that the image of its link does not exist", async () => {
    await using tab = await open("/?image=0197a1d0-5a5e-7000-8000-3c6e0b8a9c15");
    const note = tab.page.getByRole("status").filter({ hasText: "It may have been deleted" });
    await note.waitFor();
    expect(await viewProblems(tab, "branches-missing")).toEqual([]);
    await note.getByRole("button", { name: "Close" }).click();
    await note.waitFor({ state: "detached" });
    await tab.page.waitForURL((url) => url.search === "");
  });

  test("grows: a live run is shown, and its image replaces it", async () => {
    await using tab = await open();
    const { page } = tab;
    await node(page, scene.image).getByText("busybox", { exact: true }).waitFor();
    const command = "echo grown > /root/grown; cat /dev/zero | head -c 1; read line";
    const run = await scene.appliance.spawn({ image: scene.image, command, shell: true, stdin_open: true });
    await node(page, run).getByText("Running").waitFor();
    await scene.appliance.post(`/instances/${run}/processes/1/stdin`, { content: "seen\n" });
    const { result } = await scene.appliance.finished(run);
    const { image } = result as unknown as { image: string };
    await node(page, image)
      .getByText(/echo grown/)
      .waitFor();
    await node(page, run).waitFor({ state: "detached" });
    // A failed run leaves no image, and fades.
    const failing = await scene.appliance.spawn({ image, command: "exit 1", shell: true, disposable: true });
    await node(page, failing).getByText("Done, no new image").waitFor();
    await node(page, failing).waitFor({ state: "detached" });
  });

  test("tags, compares and deletes, and says first how much space a deletion frees", async () => {
    const first = await imageOf(scene.image, "echo first > /root/first");
    const second = await imageOf(first, "head -c 200000 /dev/urandom > /root/second");
    const third = await imageOf(second, "echo third > /root/third");
    await using tab = await open(`/?image=${second}`);
    const { page } = tab;
    const details = page.getByRole("complementary", { name: "Selected" });
    await details.getByText(/urandom/).waitFor();

    await details.getByRole("button", { name: "Tag", exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Tag").fill("no blanks");
    await dialog.getByText(/must be 1 to 128 characters/).waitFor();
    await dialog.getByLabel("Tag").fill("busybox");
    await dialog.getByText(/has this tag now, and loses it/).waitFor();
    await dialog.getByLabel("Tag").fill("second/step");
    await dialog.getByRole("button", { name: "Tag", exact: true }).click();
    await node(page, second).getByText("second/step").waitFor();

    await details.getByRole("button", { name: "Compare" }).click();
    await page.getByText(/Choose the image to compare with/).waitFor();
    await node(page, first).click();
    await page.waitForURL((url) => url.pathname === `/images/${first}` && url.searchParams.get("against") === second);

    await page.goto(`/?image=${second}`);
    await details.getByRole("button", { name: "Delete" }).click();
    await dialog.getByText(/Frees (nothing|[\d.,]+ [KM]?i?B)/).waitFor();
    await dialog.getByText("1 image was made from it").waitFor();
    await dialog.getByRole("button", { name: "Delete" }).click();
    await node(page, second).waitFor({ state: "detached" });
    await node(page, third).waitFor();
    expect((await scene.appliance.fetch(`/images/${second}`)).status).toBe(404);
  });

  test("works by the keyboard alone", async () => {
    const child = await imageOf(scene.image, "echo keys > /root/keys");
    await using tab = await open(`/?image=${scene.image}`);
    const { page } = tab;
    await node(page, child).waitFor();
    await treeOf(page).focus();
    await pressToRow(page, "ArrowRight");
    await pressToRow(page, "ArrowLeft");
    expect(await activeOf(page)).toBe(scene.image);
    expect(await treeOf(page).getAttribute("aria-activedescendant")).toBe(`branches-${scene.image}`);

    // A fold closes and opens.
    await page.keyboard.press("Space");
    await node(page, child).waitFor({ state: "detached" });
    expect(await node(page, scene.image).getAttribute("aria-expanded")).toBe("false");
    await page.keyboard.press("Space");
    await node(page, child).waitFor();

    await page.keyboard.press("/");
    await hasFocus(page.getByRole("searchbox"));
    await page.keyboard.type("echo keys");
    await page.getByText("1 found", { exact: true }).waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.searchParams.get("image") === child);
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await hasFocus(treeOf(page));
    await becomes(() => activeOf(page), child);

    await page.keyboard.press(".");
    const menu = page.getByRole("menu", { name: "Actions" });
    await menu.waitFor();
    expect(await menu.getByRole("menuitem").allTextContents()).toContain("Run here");
    await page.keyboard.press("Escape");
    await menu.waitFor({ state: "detached" });
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.pathname === `/images/${child}`);
  });

  test("says how to begin if it is empty", async () => {
    const token = await scene.appliance.createToken("newcomer", "--scope", "*");
    await using tab = await open("/", { token });
    await tab.page.getByText("No images yet").waitFor();
    await tab.page.getByText(/^coppice image import \S+ --tag \S+$/).waitFor();
    await tab.page.getByRole("button", { name: "Import an image" }).first().click();
    const dialog = tab.page.getByRole("dialog");
    await hasFocus(dialog.getByLabel("Reference"));
    // Without a reference there is nothing to import.
    await tab.page.keyboard.press("Enter");
    await tab.page.keyboard.type(scene.reference);
    await tab.page.keyboard.press("Tab");
    await tab.page.keyboard.type("first");
    await tab.page.keyboard.press("Enter");
    await dialog.waitFor({ state: "hidden" });
    // The import is shown live, and its image replaces it.
    await tab.page.getByRole("treeitem").getByText("first", { exact: true }).waitFor();
  });
});

test("an import accepts the login of a registry", async () => {
  await using tab = await open();
  const { page } = tab;
  const asked: unknown[] = [];
  await page.route(/\/v1\/images\/import$/, async (route) => {
    asked.push(route.request().postDataJSON());
    await route.fulfill({ status: 202, json: { uuid: uuidOf(0) } });
  });
  await page.getByRole("button", { name: "Import an image" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Reference").fill("registry.example.net/private:1");
  await dialog.getByText("The registry needs a password").click();
  await dialog.getByLabel("User name").fill("me");
  await dialog.getByLabel("Password").fill("secret");
  await dialog.getByRole("button", { name: "Import" }).click();
  await page.getByText("Import started").waitFor();
  const credentials = { username: "me", password: "secret" };
  expect(asked).toEqual([{ registry: "registry.example.net/private:1", credentials }]);
});

describe(`${MANY} images`, () => {
  const lines = branchLines(MANY);

  test("are drawn with few nodes, folded and whole, and every one is found", async () => {
    await using tab = await openWith(lines);
    const { page } = tab;
    await page.getByText("10,000 images").waitFor();
    const count = () => page.getByRole("treeitem").count();
    const steps = page
      .getByRole("treeitem")
      .filter({ hasText: /^\d+ steps/ })
      .first();
    await steps.waitFor();
    expect(await count()).toBeGreaterThan(5);
    expect(await count()).toBeLessThan(NODES_MAX);
    // Keys scroll to the selected item, starting with the first one.
    await treeOf(page).focus();
    for (const key of ["Home", "End", "ArrowUp", "Home"]) {
      await pressToRow(page, key);
      await isSeen(page, (await activeOf(page)) ?? "");
    }

    // After unfolding a chain, keys move from its first image.
    const first = (await steps.getAttribute("data-key"))?.replace("steps-", "") ?? "";
    await steps.click();
    await treeOf(page).focus();
    await page.keyboard.press("Space");
    await node(page, first).waitFor();
    await becomes(() => activeOf(page), first);

    await page.getByRole("button", { name: "Unfold all" }).click();
    await page.getByRole("button", { name: "Fold", exact: true }).waitFor();
    expect(await count()).toBeLessThan(NODES_MAX);
    for (const name of ["Zoom out", "Zoom out", "Zoom out", "Fit the tree into the window"]) {
      await page.getByRole("button", { name }).click();
      expect(await count()).toBeLessThan(NODES_MAX);
    }
    await page.getByRole("button", { name: "Fold", exact: true }).click();

    const far = uuidOf(4_321);
    await page.getByRole("searchbox").fill("step-4321");
    await page.getByText("1 found", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Next hit" }).click();
    await node(page, far).locator("mark").getByText("step-4321").waitFor();
    await page.getByRole("searchbox").fill("step-43");
    await page.getByText("111 found").waitFor();
    await page.getByRole("searchbox").fill(far);
    await page.getByText("1 found", { exact: true }).waitFor();
    expect(await viewProblems(tab, "branches-many")).toEqual([]);
  });

  test("are a list of few rows, with the same keys", async () => {
    await using tab = await openWith(lines, "/?form=list");
    const { page } = tab;
    await page.getByText("10,000 images").waitFor();
    await page.getByRole("button", { name: "Unfold all" }).click();
    await page.getByRole("button", { name: "Fold", exact: true }).waitFor();
    await treeOf(page).focus();
    // The first key selects the first row.
    await pressToRow(page, "Home");
    const first = await activeOf(page);
    await pressToRow(page, "End");
    await isSeen(page, (await activeOf(page)) ?? "");
    expect(await page.getByRole("treeitem").count()).toBeLessThan(NODES_MAX);
    await pressToRow(page, "Home");
    expect(await activeOf(page)).toBe(first);
    await pressToRow(page, "ArrowDown");
    await pressToRow(page, "ArrowUp");
    expect(await activeOf(page)).toBe(first);
    await page.keyboard.press("ArrowLeft");
    await page.locator("[aria-selected=true][aria-expanded=false]").waitFor();
    expect(await viewProblems(tab, "branches-list")).toEqual([]);
  });

  test("have a link for each, and Back restores the view", async () => {
    const far = uuidOf(7_777);
    await using tab = await openWith(lines, `/?image=${far}`);
    const { page } = tab;
    await node(page, far).waitFor();
    await isSeen(page, far);
    await page.getByRole("button", { name: "This branch alone" }).click();
    await page.getByText(/The branch of .* alone/).waitFor();
    await page.waitForURL((url) => url.searchParams.get("focus") === far);
    await page.goBack();
    await page.getByText(/The branch of .* alone/).waitFor({ state: "detached" });
    await becomes(() => activeOf(page), far);
  });
});

test("text of guests is text, whatever it contains", async () => {
  const hostile = [
    { tag: "base", about: "<img src=x onerror=alert(1)><script>alert(2)</script>" },
    { about: "echo \u202egnp.exe\u0007\u001b]0;title\u0007" },
    { about: "x".repeat(80) },
    { tag: "a".repeat(256), about: "\n\n\n" },
  ];
  const rows = hostile.map((row, at) => ({
    ...{ type: "image", uuid: uuidOf(at), created_at: new Date(at * 1000).toISOString(), size_bytes: 2 ** 52 },
    ...(at === 0 ? { kind: "image_import" } : { kind: "instance", parent: uuidOf(0), exit_code: -2_147_483_648 }),
    ...{ operation: uuidOf(at + 100), ...row },
  }));
  const lines = [...rows, { type: "end", older: true }].map((row) => `${JSON.stringify(row)}\n`).join("");
  await using tab = await openWith(lines, `/?image=${uuidOf(1)}&q=${encodeURIComponent("<img")}`);
  const { page } = tab;
  await page.getByText("The newest 4 images").waitFor();
  await node(page, uuidOf(0)).getByText("<img src=x").waitFor();
  await node(page, uuidOf(1)).getByText("echo \\u202egnp.exe\\x07\\x1b]0;title\\x07").waitFor();
  expect(await page.locator("main img, main script").count()).toBe(0);
  expect(await page.title()).toBe("Branches · Coppice");
  expect(await viewProblems(tab, "branches-hostile")).toEqual([]);
});
