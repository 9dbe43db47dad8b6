import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import type { Page } from "playwright-core";
import { HOSTILE_NAMES, harm } from "../support/page/hostile.ts";
import { choose, pressSequence, tabTo } from "../support/page/keys.ts";
import { PageScene } from "../support/page/scene.ts";
import { settled, viewProblems } from "../support/page/views.ts";
import { becomes, hasFocus } from "../support/page/waits.ts";

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

interface Sandbox {
  readonly uuid: string;
  readonly name: string;
  readonly state: string;
  readonly head: string;
}

async function answered<T>(response: Response): Promise<T> {
  const text = await response.text();
  if (!response.ok) throw new Error(`HTTP status ${response.status}: ${text}`);
  return JSON.parse(text) as T;
}

const opened = async (name: string, more: object = {}) =>
  answered<Sandbox>(await scene.appliance.post("/sandboxes?wait=60", { image: "tag:busybox", name, ...more }));
const about = async ({ uuid }: Sandbox) => answered<Sandbox>(await scene.appliance.fetch(`/sandboxes/${uuid}`));
const stateOf = async (sandbox: Sandbox) => (await about(sandbox)).state;
const filePath = ({ uuid }: Sandbox, path: string | Buffer) =>
  `/sandboxes/${uuid}/files?path=${[...Buffer.from(path as string)].map((byte) => `%${byte.toString(16).padStart(2, "0")}`).join("")}`;
const write = async (sandbox: Sandbox, path: string | Buffer, body: string) =>
  answered(await scene.appliance.fetch(filePath(sandbox, path), { method: "PUT", body }));
const read = async (sandbox: Sandbox, path: string) =>
  await (await scene.appliance.fetch(filePath(sandbox, path))).text();
const end = async ({ uuid }: Sandbox) => {
  await scene.appliance.fetch(`/sandboxes/${uuid}`, { method: "DELETE" });
};

/** The state that the head of the view shows. */
const shows = (page: Page, state: string) =>
  page.locator(".page-header-row + div").getByText(state, { exact: true }).waitFor();
const editor = (page: Page) => page.getByRole("textbox", { name: /^Text of/ });

describe("sandboxes", () => {
  test("are accessible and fit, in both themes and at every width", async () => {
    await using tab = await scene.signedIn("/sandboxes");
    const { page } = tab;
    await settled(tab);
    const problems = await viewProblems(tab, "sandboxes-none");
    const sandbox = await opened("looks", { metadata: { purpose: "looks" } });
    await write(sandbox, "/srv/a.txt", "one\ntwo\n");
    const views: Readonly<Record<string, string>> = {
      sandboxes: "/sandboxes",
      "sandbox-new": "/sandboxes/new",
      "sandbox-missing": "/sandboxes/00000000-0000-4000-8000-000000000000",
      ...Object.fromEntries(
        ["files", "terminal", "history", "processes", "ports", "events"].map((view) => [
          `sandbox-${view}`,
          `/sandboxes/${sandbox.uuid}?view=${view}`,
        ]),
      ),
      "sandbox-editor": `/sandboxes/${sandbox.uuid}?view=files&path=/srv/a.txt`,
    };
    for (const [name, link] of Object.entries(views)) {
      await page.goto(link);
      await settled(tab);
      expect(await page.getByRole("heading", { level: 1 }).count()).toBe(1);
      problems.push(...(await viewProblems(tab, name)));
    }
    await page.goto(`/sandboxes/${sandbox.uuid}`);
    for (const action of ["Fork", "More time", "End"]) {
      await page.getByRole("button", { name: "More about this sandbox" }).click();
      await page.getByRole("menuitem", { name: action }).click();
      await page.getByRole("dialog").waitFor();
      problems.push(...(await viewProblems(tab, `sandbox-${action}`)));
      await page.keyboard.press("Escape");
    }
    await end(sandbox);
    expect(problems).toEqual([]);
  });

  test("are opened at an image, paused, resumed and ended by the keyboard alone", async () => {
    await using tab = await scene.signedIn(`/images/${scene.image}`);
    const { page } = tab;
    const { keyboard } = page;
    await tabTo(tab, page.getByRole("link", { name: "Open a sandbox" }));
    await keyboard.press("Enter");
    await hasFocus(page.getByLabel("Name", { exact: true }));
    await keyboard.type("by-keys");
    await tabTo(tab, page.getByRole("button", { name: "Open", exact: true }));
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "by-keys", level: 1 }).waitFor();
    await shows(page, "Running");

    await tabTo(tab, page.getByRole("button", { name: "Pause" }));
    await keyboard.press("Enter");
    await tabTo(tab, page.getByRole("dialog").getByRole("button", { name: "Pause" }));
    await keyboard.press("Enter");
    await shows(page, "Paused");
    await tabTo(tab, page.getByRole("button", { name: "Resume" }));
    await keyboard.press("Enter");
    await shows(page, "Running");

    await pressSequence(page, "gs");
    await page.getByRole("heading", { name: "Sandboxes", level: 1 }).waitFor();
    await tabTo(tab, page.getByRole("button", { name: "Actions on by-keys" }));
    await keyboard.press("Enter");
    await keyboard.press("End");
    await hasFocus(page.getByRole("menuitem", { name: "End" }));
    await keyboard.press("Enter");
    await tabTo(tab, page.getByRole("dialog").getByRole("button", { name: "End" }));
    await keyboard.press("Enter");
    await page.getByText("No sandboxes yet").waitFor();
    await page.getByLabel("State").selectOption("ended");
    await page.getByRole("link", { name: "by-keys" }).waitFor();
  });

  test("say plainly that another request was faster", async () => {
    const sandbox = await opened("contended");
    await using tab = await scene.signedIn(`/sandboxes/${sandbox.uuid}?view=history`);
    const { page } = tab;
    await page.getByRole("button", { name: "Pause" }).click();
    await answered(await scene.appliance.post(`/sandboxes/${sandbox.uuid}/pause?wait=60`, {}));
    await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
    await page.getByRole("alert").getByText("The sandbox is paused.").waitFor();
    await page.keyboard.press("Escape");
    await shows(page, "Paused");
    await end(sandbox);
  });
});

describe("the files of a sandbox", () => {
  let sandbox: Sandbox;
  beforeAll(async () => {
    sandbox = await opened("files");
    await answered(await scene.appliance.post(`/sandboxes/${sandbox.uuid}/files/directory`, { path: "/work" }));
  });
  afterAll(() => end(sandbox));
  const at = (path: string) => `/sandboxes/${sandbox.uuid}?view=files&path=${path}`;

  test("are edited, and no change of another hand is overwritten unasked", async () => {
    await write(sandbox, "/work/note.txt", "one\r\ntwo\r\n");
    await using tab = await scene.signedIn(at("/work"));
    const { page } = tab;
    await page.getByRole("grid", { name: "Files" }).focus();
    await choose(tab, "note.txt");
    await becomes(() => editor(page).inputValue(), "one\ntwo\n");
    await editor(page).fill("one\ntwo\nthree\n");
    await page.keyboard.press("Control+s");
    await page.getByText("as in the sandbox").waitFor();
    expect(await read(sandbox, "/work/note.txt")).toBe("one\r\ntwo\r\nthree\r\n");

    await editor(page).fill("mine\n");
    await write(sandbox, "/work/note.txt", "theirs\n");
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("The file has changed in the sandbox.").waitFor();
    expect(await read(sandbox, "/work/note.txt")).toBe("theirs\n");
    expect(await viewProblems(tab, "sandbox-conflict")).toEqual([]);
    // A look at another part loses no text.
    await page.getByRole("link", { name: "Saved states" }).click();
    await page.goBack();
    await becomes(() => editor(page).inputValue(), "mine\n");
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByRole("button", { name: "Overwrite it" }).click();
    await page.getByText("as in the sandbox").waitFor();
    expect(await read(sandbox, "/work/note.txt")).toBe("mine\n");
  });

  test("can be uploaded, dropped, renamed, removed and downloaded", async () => {
    await answered(await scene.appliance.post(`/sandboxes/${sandbox.uuid}/files/directory`, { path: "/work/in" }));
    await using tab = await scene.signedIn(at("/work/in"));
    const { page } = tab;
    const entry = (name: string) => page.getByRole("row").filter({ hasText: new RegExp(`^${name}`) });
    const chosen = { name: "chosen.txt", mimeType: "text/plain", buffer: Buffer.from("by the button\n") };
    await page.locator("input[type=file]").setInputFiles(chosen);
    await entry("chosen.txt").waitFor();
    await page.getByRole("group", { name: "Directory" }).evaluate((place) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["by drop\n"], "dropped.txt"));
      for (const type of ["dragover", "drop"]) {
        place.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
      }
    });
    await entry("dropped.txt").waitFor();
    expect(await read(sandbox, "/work/in/chosen.txt")).toBe("by the button\n");
    expect(await read(sandbox, "/work/in/dropped.txt")).toBe("by drop\n");

    await page.locator("input[type=file]").setInputFiles({ ...chosen, buffer: Buffer.from("again\n") });
    await page.getByRole("dialog").getByRole("button", { name: "Replace" }).click();
    await becomes(() => read(sandbox, "/work/in/chosen.txt"), "again\n");

    await page.getByRole("button", { name: "New directory" }).click();
    await page.getByRole("dialog").getByLabel("Name").fill("inner");
    await page.keyboard.press("Enter");
    await entry("inner").waitFor();
    await page.getByRole("grid", { name: "Files" }).focus();
    await page.keyboard.press("Home");
    await page.keyboard.press("F2");
    await page.getByRole("dialog").getByLabel("Name").fill("outer");
    await page.keyboard.press("Enter");
    await entry("outer").waitFor();

    await entry("dropped.txt").getByRole("button").click();
    const download = page.waitForEvent("download");
    await page.getByRole("menuitem", { name: "Download" }).click();
    expect(await readFile(await (await download).path(), "utf8")).toBe("by drop\n");
    await entry("dropped.txt").getByRole("button").click();
    await page.getByRole("menuitem", { name: "Remove" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await entry("dropped.txt").waitFor({ state: "detached" });
    expect((await scene.appliance.fetch(filePath(sandbox, "/work/in/dropped.txt"))).status).toBe(404);
  });

  test("are text, whatever their names and contents are", async () => {
    for (const name of HOSTILE_NAMES) {
      await write(sandbox, Buffer.concat([Buffer.from("/hostile/"), Buffer.from(name as string)]), "");
    }
    await write(
      sandbox,
      "/hostile/page.html",
      "<!doctype html><title>owned</title><script>globalThis.owned=1</script>\u202e",
    );
    await using tab = await scene.signedIn(at("/hostile"), { width: 360, height: 740 });
    const { page } = tab;
    await page.getByText("<img src=x onerror=globalThis.owned=1>").first().waitFor();
    expect(await harm(tab)).toEqual([]);
    const menu = page.getByRole("row").filter({ hasText: "onerror" }).getByRole("button");
    await menu.click();
    await page.getByRole("menuitem", { name: "Remove" }).click();
    await page.getByRole("dialog").waitFor();
    expect(await harm(tab)).toEqual([]);
    await page.keyboard.press("Escape");
    await page.goto(at("/hostile/page.html"));
    await editor(page).waitFor();
    await page.getByText("has invisible characters").waitFor();
    expect(await harm(tab)).toEqual([]);
  });
});

test("the saved states lead back, and what is given up can be kept", async () => {
  const sandbox = await opened("history");
  await using tab = await scene.signedIn(`/sandboxes/${sandbox.uuid}?view=history`);
  const { page } = tab;
  await write(sandbox, "/root/a", "first");
  await page.getByRole("button", { name: "Checkpoint" }).click();
  await page.getByRole("dialog").getByLabel("Tag").fill("good");
  await page.keyboard.press("Enter");
  const head = page.locator("[aria-current=step]");
  await head.getByText("good", { exact: true }).waitFor();
  await write(sandbox, "/root/a", "broken");
  await head.getByRole("button", { name: "Roll back to the head" }).click();
  await page.getByLabel("Keep what is given up").check();
  await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await becomes(() => stateOf(sandbox), "running");
  expect(await read(sandbox, "/root/a")).toBe("first");
  await page.getByText("Kept before a rollback").waitFor();
  await page.getByText("not in the history of the head").waitFor();
  await head.getByText("good", { exact: true }).waitFor();
  expect(await viewProblems(tab, "sandbox-line")).toEqual([]);
  await page.getByRole("link", { name: "Events" }).click();
  await page.getByRole("list", { name: "Story" }).getByText("Resuming").first().waitFor();
  await end(sandbox);
});

test("a shell resumes a paused sandbox, and its processes can be read", async () => {
  const sandbox = await opened("shell");
  await answered(await scene.appliance.post(`/sandboxes/${sandbox.uuid}/pause?wait=60`, {}));
  await using tab = await scene.signedIn(`/sandboxes/${sandbox.uuid}?view=terminal`);
  const { page } = tab;
  await page.getByRole("button", { name: "Resume and open a shell" }).click();
  await page.getByText(/^Attached to process/).waitFor();
  await shows(page, "Running");
  await page.getByRole("button", { name: "Detach" }).click();
  await page.getByRole("link", { name: "Processes" }).click();
  await page.getByRole("button", { name: "Start a process" }).click();
  await page.getByLabel("Shell command").fill("echo from a process; sleep 600");
  await page.keyboard.press("Enter");
  const row = page.getByRole("row", { name: /sleep 600/ });
  await row.getByText("Running").waitFor();
  await row.getByRole("button").click();
  await page.getByRole("menuitem", { name: "Output" }).click();
  await page.locator(".run-line-text").getByText("from a process", { exact: true }).waitFor();
  await end(sandbox);
});

test("more time moves the deadline", async () => {
  const sandbox = await opened("life", { timeout: 600 });
  await using tab = await scene.signedIn(`/sandboxes/${sandbox.uuid}`);
  const { page } = tab;
  await page.getByText(/^Then it pauses\./).waitFor();
  await page.locator(".figures").getByRole("button", { name: "More time" }).click();
  const question = page.getByRole("dialog");
  await question.getByLabel("Time from now").fill("2h");
  await question.getByLabel("Then").selectOption("end");
  await question.getByLabel("Pause when idle for").fill("30m");
  await question.getByRole("button", { name: "Change" }).click();
  await page.getByText(/^Then it ends. It pauses after 30 min without use\./).waitFor();
  await end(sandbox);
});

test("ports are opened by links of the appliance, and by no other address", async () => {
  const sandbox = await opened("ports");
  await using tab = await scene.signedIn("/sandboxes");
  const { page } = tab;
  const served = { urls: { pattern: `http://{port}-${sandbox.uuid}.localhost:8080/` }, public_ports: [3000] };
  const json = { ...(await about(sandbox)), ...served };
  await page.route(/\/v1\/sandboxes\/[^/]+$/, (route) => route.fulfill({ json }));
  let url = "javascript:globalThis.owned=1";
  await page.route(/\/links$/, (route) =>
    route.fulfill({ status: 201, json: { url, expires_at: new Date(Date.now() + 3_600_000).toISOString() } }),
  );
  await page.goto(`/sandboxes/${sandbox.uuid}?view=ports`);
  const make = page.getByRole("button", { name: "Make a link" });
  await make.click();
  await page.locator("[aria-busy=true]").waitFor({ state: "detached" });
  const links = page.getByRole("link", { name: "Open in another tab" });
  // That of the public port.
  await becomes(() => links.count(), 1);
  expect(await links.getAttribute("href")).toBe(`http://3000-${sandbox.uuid}.localhost:8080/`);
  url = `http://8080-${sandbox.uuid}.localhost:8080/?token=secret`;
  await make.click();
  await becomes(() => links.count(), 2);
  expect(await links.first().getAttribute("href")).toBe(url);
  expect(await links.first().getAttribute("rel")).toBe("noopener noreferrer");
  expect(await viewProblems(tab, "sandbox-ports-served")).toEqual([]);
  await end(sandbox);
});
