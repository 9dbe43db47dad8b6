import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import {
  BIDI_NAME,
  type HostileImage,
  hostileImage,
  LOG_LINES,
  MANY_COUNT,
  MARKUP_NAME,
  SPARSE_BYTES,
} from "../support/page/hostile-image.ts";
import { choose, pressToRow, tabTo } from "../support/page/keys.ts";
import { PageScene } from "../support/page/scene.ts";
import type { Tab } from "../support/page/tab.ts";
import { settled, viewProblems } from "../support/page/views.ts";
import { becomes, drawn, hasFocus } from "../support/page/waits.ts";

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
const rowsOf = ({ page }: Tab, list: string) => page.getByRole("grid", { name: list }).getByRole("row");
const line = ({ page }: Tab, text: string | RegExp) =>
  page.getByRole("grid", { name: "Lines" }).getByRole("row").filter({ hasText: text }).first();

describe("a directory", () => {
  test("is listed, and every entry is text", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv"));
    const { page } = tab;
    await rowsOf(tab, "Files").filter({ hasText: MARKUP_NAME }).waitFor();
    await page.getByText("22 entries", { exact: true }).waitFor();
    expect(await page.locator("main img, main script, main b").count()).toBe(0);
    await page.getByLabel("Filter by name").fill("safe");
    await rowsOf(tab, "Files").filter({ hasText: "safe\\u202etxt.exe" }).waitFor();
    await page.getByText("1 of 22 entries").waitFor();
    await page.waitForURL(/filter=safe/);
    await page.getByLabel("Filter by name").fill("");
    await page.getByLabel("Order by").selectOption("size");
    await page.getByRole("button", { name: "Smallest first" }).click();
    await page.waitForURL(/down=1/);
    const names = rowsOf(tab, "Files").getByRole("link");
    await becomes(async () => (await names.allTextContents()).slice(2, 5), ["sparse", "log", "long"]);
    expect(await viewProblems(tab, "image-files")).toEqual([]);
  });

  test("of 100,000 entries is read to its end, renders only visible rows, and keeps the active row", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/many"));
    const { page } = tab;
    const files = page.getByRole("grid", { name: "Files" });
    await rowsOf(tab, "Files").filter({ hasText: "entry-000002" }).waitFor();
    await files.press("ArrowDown");
    await files.press("ArrowDown");
    await page.getByText(`${MANY_COUNT.toLocaleString("en-US")} entries`, { exact: true }).waitFor();
    expect(await rowsOf(tab, "Files").count()).toBeLessThan(200);
    await page.getByRole("button", { name: "Smallest first" }).click();
    await files.locator("[aria-selected=true][aria-rowindex='99999']").filter({ hasText: "entry-000002" }).waitFor();
    await files.press("End");
    await rowsOf(tab, "Files").filter({ hasText: "entry-000000" }).waitFor();
    await page.getByLabel("Filter by name").fill("77777");
    await page.getByText(`1 of ${MANY_COUNT.toLocaleString("en-US")} entries`).waitFor();
    await rowsOf(tab, "Files").filter({ hasText: "entry-077777" }).waitFor();
  });

  test("is navigated by keys alone: into it, into a file, and back up to the same row", async () => {
    await using tab = await scene.signedIn(at("view=files"));
    const { page } = tab;
    const files = page.getByRole("grid", { name: "Files" });
    const lines = page.getByRole("grid", { name: "Lines" });
    await tabTo(tab, files);
    await choose(tab, "srv");
    await page.waitForURL(/path=\/srv$/);
    await hasFocus(files);
    await choose(tab, "many");
    await page.waitForURL(/path=\/srv\/many/);
    await hasFocus(files);
    await page.keyboard.press("Backspace");
    await page.waitForURL(/path=\/srv$/);
    await files.locator("[aria-selected=true]").filter({ hasText: "many" }).waitFor();
    await choose(tab, "words.py");
    await page.waitForURL(/path=\/srv\/words\.py/);
    await hasFocus(lines);
    await page.goBack();
    await files.locator("[aria-selected=true]").filter({ hasText: "words.py" }).waitFor();
    await hasFocus(files);
    await page.keyboard.press("Enter");
    await hasFocus(lines);
    await page.keyboard.press("Backspace");
    await page.waitForURL(/path=\/srv$/);
    await hasFocus(files);
    await files.locator("[aria-selected=true]").filter({ hasText: "words.py" }).waitFor();
    await page.keyboard.press("/");
    await hasFocus(page.getByLabel("Filter by name"));
  });

  test("and its entries can be downloaded, also with names that are not UTF-8", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/r%FFw"));
    const { page } = tab;
    await line(tab, "raw name").waitFor();
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("link", { name: "Download" }).click(),
    ]);
    expect(await readFile(await download.path(), "utf8")).toBe("raw name\n");
    await page.getByRole("navigation", { name: "Path" }).getByRole("link", { name: "srv" }).click();
    await rowsOf(tab, "Files").filter({ hasText: "r\\xffw" }).getByRole("link").click();
    await line(tab, "raw name").waitFor();
    await page.goto(at("view=files&path=/srv/deep"));
    await settled(tab);
    const [archive] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("link", { name: "Archive", exact: true }).click(),
    ]);
    expect(archive.suggestedFilename()).toContain("deep");
    expect((await readFile(await archive.path())).includes("./er/est/file")).toBe(true);
  });

  test("that does not exist, or whose image does not exist, gives a message", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/none"));
    const path = tab.page.getByRole("alert").filter({ hasText: "This path cannot be shown" });
    await path.waitFor();
    expect(await path.textContent()).not.toContain("another account");
    await tab.page.goto("/images/01a1f94f-ffa3-7412-bb13-f07cbd0e5a9f");
    const image = tab.page.getByRole("alert").filter({ hasText: "This image cannot be shown" });
    await image.filter({ hasText: "another account" }).waitFor();
    await tab.page.goto("/images/no%2Fimage");
    await tab.page.getByRole("heading", { level: 1, name: "No such image" }).waitFor();
  });
});

describe("a text", () => {
  test("has colours, and a link to each line", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/words.py&line=7"));
    const { page } = tab;
    await page.locator(".token-keyword").filter({ hasText: "def" }).waitFor();
    expect(await page.locator(".image-line-target").textContent()).toContain("with open(path) as file");
    await page.getByRole("link", { name: "5", exact: true }).click();
    await page.waitForURL(/line=5/);
    await page.locator(".image-line-target").filter({ hasText: "def count" }).waitFor();
    await page.getByText("11 lines · UTF-8 · python").waitFor();
    expect(await viewProblems(tab, "image-text")).toEqual([]);
  });

  test("shows invisible characters, and runs nothing", async () => {
    await using tab = await scene.signedIn(at(`view=files&path=/srv/${encodeURIComponent(BIDI_NAME)}`));
    await line(tab, "a\\u202eb\\x07\\x1b[31mred").waitFor();
    for (const name of [MARKUP_NAME, "page.html", "drawing.svg"]) {
      await tab.page.goto(at(`view=files&path=/srv/${encodeURIComponent(name)}`));
      await line(tab, "<script>").waitFor();
      expect(await tab.page.locator("main iframe, main object, main embed, main img, main script").count()).toBe(0);
    }
    expect(await tab.page.title()).toContain("Coppice");
  });

  test("that is not UTF-8 says so, and one in UTF-16 is read as such", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/latin"));
    await line(tab, "caf\ufffd cr\ufffdme").waitFor();
    await tab.page.getByText("2 bytes that are not UTF-8").waitFor();
    await tab.page.goto(at("view=files&path=/srv/wide"));
    await line(tab, "grün").waitFor();
    await tab.page.getByText("UTF-16LE").waitFor();
  });

  test("cuts long lines with a mark, and wraps them on demand", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/long"));
    const { page } = tab;
    await line(tab, /… [\d,]+ more characters; the line is cut at 4,096/).waitFor();
    const length = () => page.evaluate(() => document.querySelector("main")?.textContent?.length ?? 0);
    expect(await length()).toBeLessThan(20_000);
    await page.getByLabel("Wrap lines").check();
    await page.waitForFunction(() => document.querySelectorAll(".image-lines .virtual-row").length > 10);
    const hasBar = () =>
      page.locator(".image-lines").evaluate(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth + 1);
    await becomes(hasBar, false);
    await page.getByLabel("Wrap lines").uncheck();
    await page.waitForFunction(() => document.querySelectorAll(".image-lines .virtual-row").length < 5);
    await becomes(hasBar, true);
  });

  test("that is longer than a part is read part by part, with continuous line numbers", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/log&line=30000"));
    const { page } = tab;
    await page.locator(".image-line-target").filter({ hasText: "line 30000 of the log" }).waitFor();
    await page.getByRole("link", { name: "Next part" }).click();
    await page.waitForURL(/first=\d+/);
    const first = Number(new URL(page.url()).searchParams.get("first"));
    await line(tab, `line ${first} of the log`)
      .getByRole("link", { name: String(first), exact: true })
      .waitFor();
    await page.getByRole("grid", { name: "Lines" }).focus();
    await page.keyboard.press("End");
    await line(tab, `line ${LOG_LINES} of the log`).waitFor();
  });
});

describe("bytes and pictures", () => {
  test("of any size are read as they become visible", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/sparse"));
    const { page } = tab;
    await page.getByRole("grid", { name: "Bytes" }).getByText("0000 0000").first().waitFor();
    await page.getByLabel("Offset").fill(`0x${(SPARSE_BYTES - 3).toString(16)}`);
    await page.getByRole("button", { name: "Go" }).click();
    await page.getByRole("grid", { name: "Bytes" }).getByText("65 6e 64").waitFor();
    await page.getByLabel("Offset").fill(String(SPARSE_BYTES));
    await page.getByRole("button", { name: "Go" }).click();
    await page.getByText("The file ends before this offset.").waitFor();
    const asked = tab.requests.filter((address) => address.includes("download?")).length;
    expect(asked).toBeLessThan(10);
    await page.goto(at("view=files&path=/srv/binary"));
    await page.getByRole("grid", { name: "Bytes" }).getByText("00 01 02 03 04 05 06 07").first().waitFor();
    expect(await viewProblems(tab, "image-hex")).toEqual([]);
  });

  test("of a picture are drawn, unless it is too large or damaged", async () => {
    await using tab = await scene.signedIn(at("view=files&path=/srv/picture.png"));
    const { page } = tab;
    const canvas = page.getByRole("img", { name: "Picture picture.png" });
    await canvas.waitFor();
    const picture = () =>
      canvas.evaluate((element) => {
        const { width, height } = element as HTMLCanvasElement;
        const pixels = (element as HTMLCanvasElement).getContext("2d")?.getImageData(0, 0, width, height).data;
        return [width, height, new Set(pixels).size > 1];
      });
    await becomes(picture, [64, 64, true]);
    expect(await viewProblems(tab, "image-picture")).toEqual([]);
    await page.goto(at("view=files&path=/srv/bomb.png"));
    await page.getByRole("alert").filter({ hasText: "2,500 megapixels" }).waitFor();
    expect(await page.locator("canvas").count()).toBe(0);
    await page.goto(at("view=files&path=/srv/broken.png"));
    await page.getByRole("alert").filter({ hasText: "damaged" }).waitFor();
  });
});

describe("the changes", () => {
  test("are a tree with counts, and each difference has both sides", async () => {
    await using tab = await scene.signedIn(at("view=changes"));
    const { page } = tab;
    await page.getByText("10 differences: 6 added, 3 changed, 1 removed").waitFor();
    expect(await viewProblems(tab, "image-changes")).toEqual([]);
    await page.getByRole("link", { name: "empty", exact: true }).click();
    const difference = page.getByRole("article", { name: "Difference" });
    await difference.getByText("-rwxr-x--- 0750").waitFor();
    await difference.getByText("7:8").waitFor();
    await difference.getByText("The content is the same.").waitFor();
    await page.getByRole("link", { name: "link", exact: true }).click();
    await difference.getByText("words.py", { exact: true }).waitFor();
    await difference.getByText("long", { exact: true }).waitFor();
    await page.getByRole("link", { name: "sparse", exact: true }).click();
    await difference.getByText("The content is not text.").waitFor();
  });

  test("of a text is shown line by line, in one column and side by side", async () => {
    await using tab = await scene.signedIn(at("view=changes&path=/srv/words.py"));
    const { page } = tab;
    await page.locator(".image-row-added").filter({ hasText: "Counts all words." }).waitFor();
    expect(await page.locator(".image-row-added mark").first().textContent()).toBe("all ");
    expect(await viewProblems(tab, "image-compare")).toEqual([]);
    await page.getByRole("button", { name: "Side by side" }).click();
    await page.waitForURL(/side=1/);
    const pair = page.locator(".image-row-replaced").first();
    await pair.waitFor();
    expect((await pair.textContent())?.replaceAll(/\s+/g, " ")).toContain('"""Counts words."""');
    expect(await viewProblems(tab, "image-side-by-side")).toEqual([]);
    await page.getByRole("button", { name: "Close" }).click();
    await page.waitForURL((url) => !url.search.includes("path="));
  });

  test("since any other image is shown as well, and folds by keys", async () => {
    await using tab = await scene.signedIn(at("view=changes"));
    const { page } = tab;
    await page.getByLabel("Compare with").selectOption({ label: "another image…" });
    await page.getByLabel("Tag or uuid").fill("no-such-tag");
    await page.getByRole("button", { name: "Compare" }).click();
    await page.getByText("No image has this tag.").waitFor();
    await page.getByLabel("Tag or uuid").fill("busybox");
    await page.getByRole("button", { name: "Compare" }).click();
    await page.waitForURL(new RegExp(`against=${scene.image}`));
    // Each of them is an entry of a directory that busybox does not have, and they are read page by page.
    await page.getByText(/^20,000 differences: 20,000 added, .* there are more/).waitFor();
    await page.getByRole("button", { name: "Read 20,000 more" }).click();
    await page.getByText(/^40,000 differences: 40,000 added, .* there are more/).waitFor();
    const tree = page.getByRole("grid", { name: "Differences" });
    await tree.focus();
    const count = () => tree.getAttribute("aria-rowcount");
    const before = Number(await count());
    await tree.locator("[aria-expanded=false]").first().waitFor();
    await pressToRow(page, "End");
    for (let step = 0; step < 40; step++) {
      if ((await tree.locator("[aria-selected=true] [aria-expanded=false]").count()) > 0) break;
      await pressToRow(page, "ArrowUp");
    }
    await page.keyboard.press("ArrowRight");
    await becomes(async () => Number(await count()) > before, true);
    await page.keyboard.press("ArrowLeft");
    await becomes(async () => Number(await count()), before);
  });
});

test("the history has each step, with its outcome, its size and its run", async () => {
  await using tab = await scene.signedIn(at("view=history"));
  const { page } = tab;
  const steps = page.getByRole("region", { name: "History" }).getByRole("listitem");
  await steps.filter({ hasText: "sed -i" }).waitFor();
  await becomes(() => steps.count(), 2);
  await steps.first().getByText("Done").waitFor();
  await steps.last().getByText("hostile:1").waitFor();
  expect(await steps.first().getByRole("link", { name: "Run" }).getAttribute("href")).toMatch(
    /^\/runs\/[0-9a-f-]{36}$/,
  );
  expect(await viewProblems(tab, "image-history")).toEqual([]);
  await steps.last().getByRole("link", { name: /image/ }).click();
  await page.getByRole("heading", { level: 1, name: "hostile" }).waitFor();
});

describe("a search", () => {
  test("finds names", async () => {
    await using tab = await scene.signedIn(at("view=search"));
    const { page } = tab;
    await page.getByLabel("Name or glob").fill("*.py");
    await page.keyboard.press("Enter");
    await page.waitForURL(/name=\*\.py/);
    await rowsOf(tab, "Entries").filter({ hasText: "/srv/words.py" }).waitFor();
    await page.getByText("1 entry", { exact: true }).waitFor();
    // The next words replace the previous ones.
    await page.keyboard.press("Control+A");
    await page.keyboard.type("r?w");
    await page.keyboard.press("Enter");
    await page.waitForURL(/name=r%3Fw/);
    await page.goBack();
    await rowsOf(tab, "Entries").filter({ hasText: "/srv/words.py" }).waitFor();
    await becomes(() => page.getByLabel("Name or glob").inputValue(), "*.py");
    await page.goForward();
    await rowsOf(tab, "Entries").filter({ hasText: "/srv/r\\xffw" }).getByRole("link").click();
    await line(tab, "raw name").waitFor();
  });

  test("finds lines, with a link to each, however far down it is", async () => {
    await using tab = await scene.signedIn(
      at(`view=search&by=text&path=/srv&text=${encodeURIComponent("LINE 5999[89] of")}`),
    );
    const { page } = tab;
    const matches = rowsOf(tab, "Matching lines");
    await matches.filter({ hasText: "line 59999 of the log" }).waitFor();
    await page.getByText(/^2 lines · \d+ files and .* read/).waitFor();
    await becomes(() => matches.count(), 2);
    expect(await matches.locator("mark").first().textContent()).toBe("line 59998 of");
    expect(await viewProblems(tab, "image-search")).toEqual([]);
    await matches.filter({ hasText: "line 59999" }).getByRole("link").click();
    await page.locator(".image-line-target").filter({ hasText: "line 59999 of the log" }).waitFor();
    await page.getByRole("link", { name: "59999", exact: true }).waitFor();
  });

  test("can be stopped, and keeps its matches", async () => {
    await using tab = await scene.signedIn(at("view=search"));
    const { page } = tab;
    const held = Promise.withResolvers<void>();
    let asked = 0;
    await page.route(/\/grep\?/, async (route) => {
      asked += 1;
      // The second step is the first directory, which has the line.
      if (asked > 2) await held.promise;
      // The page has aborted the request by now.
      await route.continue().catch(() => undefined);
    });
    await page.goto(at("view=search&by=text&path=/srv&text=new"));
    await rowsOf(tab, "Matching lines").filter({ hasText: "/srv/deep/er/est/file" }).waitFor();
    await page.getByRole("progressbar", { name: "Searched parts of the directory" }).waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText(/^1 line · .* · stopped$/).waitFor();
    expect(await rowsOf(tab, "Matching lines").count()).toBe(1);
    expect(await page.getByRole("progressbar").count()).toBe(0);
    held.resolve();
    await drawn(page);
    expect(asked).toBe(3);
  });

  test("reports an invalid expression, and skipped files", async () => {
    await using tab = await scene.signedIn(at("view=search&by=text&text=%5B"));
    await tab.page.getByRole("alert").filter({ hasText: "The search failed" }).waitFor();
    await tab.page.goto(at("view=search&by=text&path=/srv/log&text=line"));
    await tab.page.getByText("1,000 lines").waitFor();
    await tab.page.getByText("at most 1,000 lines are shown").waitFor();
  });
});
