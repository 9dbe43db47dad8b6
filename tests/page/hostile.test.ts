import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { type HOSTILE_FILES, HOSTILE_NAMES, type HostileThings, harm, hostileThings } from "../support/page/hostile.ts";
import { PageScene } from "../support/page/scene.ts";
import type { Tab } from "../support/page/tab.ts";
import { settled } from "../support/page/views.ts";
import { becomes } from "../support/page/waits.ts";

let scene: PageScene;
let things: HostileThings;
let tab: Tab;
beforeAll(async () => {
  scene = await PageScene.start();
  things = await hostileThings(scene.appliance, scene.image);
  tab = await scene.signedIn("/", { width: 360, height: 740 });
});
afterAll(async () => {
  await using _scene = scene;
  await tab[Symbol.asyncDispose]();
});

/** Opens a link on the smallest screen, waits for its content, and returns the effects of hostile text. */
async function harmAt(path: string, about: string | RegExp): Promise<string[]> {
  await tab.page.goto(path);
  await settled(tab);
  await tab.page.getByRole("main").getByText(about).first().waitFor();
  return await harm(tab);
}

const inImage = (view: string, path?: string): string =>
  `/images/${things.image}?view=${view}${path === undefined ? "" : `&path=${encodeURIComponent(path)}`}`;
/** The visible text of each file, with escapes for invisible characters. */
const READ_AS: Readonly<Record<keyof typeof HOSTILE_FILES, string | RegExp>> = {
  "page.html": /<!doctype html><title>owned<\/title><body onload=/,
  "picture.svg": /<svg xmlns="\S+" onload="globalThis.owned=1"><script>/,
  "source.js": /\\u202e\\u2066 begin admin only/,
  "notes.md": /\[link\]\(javascript:globalThis.owned=1\)/,
  "escapes.txt": /\\x1b\]52;c;.*\\u202eafter/,
  "lie.png": /<img src=x onerror=globalThis.owned=1>/,
  "bomb.png": /3,600 megapixels/,
  "long-line.txt": /W{100}/,
};

describe("text of guests", () => {
  test("is text among the branches", async () => {
    expect(await harmAt("/", /<img src=x/)).toEqual([]);
  });

  test("is text in the listing of a directory, and no name is an empty place", async () => {
    expect(await harmAt(inImage("files", "/hostile"), "<img src=x onerror=globalThis.owned=1>")).toEqual([]);
    await tab.page.getByText("\\x20", { exact: true }).first().waitFor();
    await tab.page.getByText("\\x1b]0;owned\\x07escape").first().waitFor();
  });

  test.each(Object.entries(READ_AS))("is text in the preview of %s", async (name, text) => {
    expect(await harmAt(inImage("files", `/hostile/${name}`), text)).toEqual([]);
  });

  test("is text in files of any name", async () => {
    for (const name of HOSTILE_NAMES) {
      const bytes = Buffer.from(name as string);
      const path = `%2Fhostile%2F${[...bytes].map((byte) => `%${byte.toString(16).padStart(2, "0")}`).join("")}`;
      const link = `/images/${things.image}?view=files&path=${path}`;
      expect({ link, harm: await harmAt(link, /empty/i) }).toEqual({ link, harm: [] });
    }
  });

  test("is text in what changed, in how an image came to be, and in what a search finds", async () => {
    expect(await harmAt(inImage("changes"), /javascript:globalThis/)).toEqual([]);
    expect(await harmAt(inImage("history"), /<img src=x/)).toEqual([]);
    expect(await harmAt(inImage("search"), "In directory")).toEqual([]);
    await tab.page.getByLabel("Name or glob").fill("*owned*");
    await tab.page.keyboard.press("Enter");
    await tab.page.getByText("<img src=x onerror=globalThis.owned=1>").first().waitFor();
    expect(await harm(tab)).toEqual([]);
  });

  test("is text in the list of runs, in a run that ended, and in one that failed", async () => {
    expect(await harmAt("/runs", /<img src=x/)).toEqual([]);
    expect(await harmAt(`/runs/${things.run}`, /<img src=x onerror.*link\\u202e$/)).toEqual([]);
    expect(await harmAt(`/runs/${things.failed}`, /n{100}:missing/)).toEqual([]);
  });

  test("is text in the appliance, and in the form of a run that repeats another", async () => {
    expect(await harmAt("/appliance", "Now")).toEqual([]);
    expect(await harmAt("/appliance/space", /<img src=x/)).toEqual([]);
    expect(await harmAt("/appliance/operations", /<img src=x/)).toEqual([]);
    expect(await harmAt(`/runs/new?from=${things.run}`, "Command")).toEqual([]);
    await becomes(async () => {
      const command = await tab.page.getByLabel("Command", { exact: true }).inputValue();
      return command.includes("<img src=x");
    }, true);
  });

  test("is text where a link brings it", async () => {
    const markup = encodeURIComponent(`"><img src=x onerror=globalThis.owned=1>`);
    const paths = [
      `/images/${things.image}?view=files&path=%2F${markup}`,
      `/images/${things.image}?view=${markup}&against=${markup}`,
      `/images/${markup}`,
      `/runs/${markup}`,
      `/runs?status=${markup}&image=${markup}`,
      `/runs/new?image=${markup}`,
      "/images/javascript:globalThis.owned=1",
    ];
    for (const path of paths) expect({ path, harm: await harmAt(path, /./) }).toEqual({ path, harm: [] });
  });

  test("turns nothing around where a link brings it", async () => {
    const turned = encodeURIComponent("\u202e\u2066turned ").repeat(20);
    const paths = [
      ...[`/?q=${turned}`, `/?image=${turned}&form=list`, `/?focus=${turned}`],
      ...[`/images/${turned}`, `/runs/${turned}`, `/appliance/${turned}`, `/runs/new?from=${turned}`],
      ...[`/runs?status=${turned}&since=${turned}`, `/runs/${things.run}?view=${turned}&process=${turned}`],
      ...["files&filter=", "files&path=", "changes&against=", "changes&path=", "search&name=", "search&path="].map(
        (field) => `/images/${things.image}?view=${field}${turned}`,
      ),
      ...[`/images/${things.image}?view=search&by=text&text=%28${turned}`],
    ];
    const problems: string[] = [];
    for (const path of paths) problems.push(...(await harmAt(path, /./)).map((what) => `${path}: ${what}`));
    expect(problems).toEqual([]);
    const token = await scene.appliance.createToken("root", "--scope", "*", "--scope", "operator");
    await using own = await scene.signedIn(`/appliance/tokens?account=${turned}`, { token });
    await own.page.getByText("has no such token").waitFor();
    expect(await harm(own)).toEqual([]);
  });
});
