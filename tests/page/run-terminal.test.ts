import { afterAll, beforeAll, expect, test } from "bun:test";
import type { Page } from "playwright-core";
import { Client } from "../../src/client/client.ts";
import { Run } from "../../src/client/runs.ts";
import { PageScene } from "../support/page/scene.ts";
import { viewProblems } from "../support/page/views.ts";
import { drawn, hasFocus, held } from "../support/page/waits.ts";
import { until } from "../support/waiting.ts";

let scene: PageScene;
let run: Run;
beforeAll(async () => {
  scene = await PageScene.start();
  const client = new Client({ url: scene.appliance.url, token: scene.appliance.token });
  run = await Run.start(client, { image: "tag:busybox", command: "sleep", args: ["3600"], disposable: true });
});
afterAll(async () => {
  await run.cancel();
  await scene[Symbol.asyncDispose]();
});

const rows = async (page: Page) =>
  (await page.locator(".xterm-rows > div").allTextContents()).map((row) => row.trimEnd());
/** Whether a row of the screen has exactly this text. */
const isShown = async (page: Page, text: string) => (await rows(page)).includes(text);
const shows = (page: Page, text: string) => until(`the screen shows ${text}`, () => isShown(page, text));
const type = async (page: Page, line: string) => {
  await page.keyboard.type(line);
  await page.keyboard.press("Enter");
};
/** Longest time for the effect of a line, in `milliseconds`. */
const OBEYED_MS_MAX = 5000;
/**
 * Writes lines until they take effect: the shell queries the position of the cursor at each prompt, and letters before the
 * answer may be lost. If the end of a line is lost, the shell waits for the rest until it is interrupted.
 */
const untilObeyed = (page: Page, write: () => Promise<void>, isObeyed: () => Promise<boolean>) =>
  until("the shell obeys", async () => {
    await write();
    if (await soon("the line is obeyed", isObeyed)) return true;
    await page.keyboard.press("Control+c");
    await soon(
      "there is a prompt",
      async () => (await rows(page)).findLast((row) => row !== "")?.endsWith("#") === true,
    );
    return false;
  });
const typeUntil = (page: Page, line: string, isObeyed: () => Promise<boolean>) =>
  untilObeyed(page, () => type(page, line), isObeyed);
/** Whether a condition holds within the longest time for the effect of a line. */
const soon = (what: string, holds: () => Promise<boolean>) =>
  until(what, holds, OBEYED_MS_MAX).then(
    () => true,
    () => false,
  );
const openShell = async (page: Page) => {
  await page.getByRole("button", { name: "Open a shell" }).click();
  await page.getByText(/^Attached to process/).waitFor();
};

test("a shell gets keys, has the size of the view, survives detaching, and reports its exit code", async () => {
  await using tab = await scene.signedIn(`/runs/${run.id}?view=terminal`);
  const { page } = tab;
  await openShell(page);
  await typeUntil(page, "echo $((6 * 7)) is it", () => isShown(page, "42 is it"));
  const size = async (): Promise<string> => {
    const sizeRow = async () => (await rows(page)).findLast((row) => /^size \d+ \d+ end$/.test(row));
    await typeUntil(page, "clear; echo size $(stty size) end", async () => (await sizeRow()) !== undefined);
    return (await sizeRow()) ?? "";
  };
  const wide = await size();
  await page.setViewportSize({ width: 700, height: 900 });
  await until("the shell has another size", async () => (await size()) !== wide);
  await page.setViewportSize({ width: 1280, height: 800 });
  await typeUntil(page, "clear; echo before", () => isShown(page, "before"));
  expect(await viewProblems(tab, "run-terminal")).toEqual([]);

  // The process keeps running, and the link returns to it.
  const link = page.url();
  await page.getByRole("button", { name: "Detach" }).click();
  await page.locator(".table").waitFor();
  await page.goto(link);
  await page.getByText(/^Attached to process/).waitFor();
  await shows(page, "before");
  await typeUntil(page, "echo after", () => isShown(page, "after"));
  await typeUntil(page, "exit 5", () => page.getByText("The process has ended with exit code 5.").isVisible());
});

test("a hostile program writes no clipboard, no title and no link, and its colours break no policy", async () => {
  await using tab = await scene.signedIn(`/runs/${run.id}?view=terminal`);
  const { page } = tab;
  await openShell(page);
  const title = await page.title();
  const sequences = [
    "printf '\\033]0;owned\\007\\033]2;owned\\033\\\\'",
    "printf '\\033]52;c;ZXZpbA==\\007'",
    "printf '\\033]8;;http://evil.example/\\007a link\\033]8;;\\007\\n'",
    "printf '\\033[38;2;250;10;10mtrue \\033[48;5;200mcolour\\033[0m\\n'",
    // Bytes without a meaning, of which the console must not get a line each.
    "printf 'not \\177\\177deleted\\n'",
    "printf '\\033[21t\\033[c\\033[>c\\033]10;?\\007'",
  ];
  const line = `${sequences.join("; ")}; echo; echo done`;
  await typeUntil(page, line, async () => (await isShown(page, "done")) && (await isShown(page, "a link")));
  expect(await rows(page)).toContain("not deleted");
  expect(await page.title()).toBe(title);
  await page.getByText("a link", { exact: true }).first().click({ force: true });
  await drawn(page);
  expect(page.context().pages()).toHaveLength(1);
  const colour = page.locator(".xterm-rows span", { hasText: /^true/ }).first();
  expect(await colour.evaluate((span) => getComputedStyle(span).color)).not.toBe(
    await page.locator(".xterm-rows").evaluate((all) => getComputedStyle(all).color),
  );
});

test("endless marks are cut to a few per character, so that the screen is drawn", async () => {
  await using tab = await scene.signedIn(`/runs/${run.id}?view=terminal`);
  const { page } = tab;
  await openShell(page);
  // 20,480 marks in one write: thousands of small ones take an emulated guest longer than a shell is given.
  const marks = (mark: string) => `awk 'BEGIN { m = "${mark.repeat(5)}"; while (n++ < 12) m = m m; print "a" m "b" }'`;
  await typeUntil(page, `clear; ${marks("\\314\\201")}; echo done`, () => isShown(page, "done"));
  expect(await rows(page)).toContain(`a${"\u0301".repeat(16)}b`);
  // A sequence between two marks makes xterm.js give each a cell of its own.
  await typeUntil(page, `clear; ${marks("\\314\\201\\033[m")}; echo; echo all done`, () => isShown(page, "all done"));
});

test("text of several lines is pasted after a question, without control characters", async () => {
  await using tab = await scene.signedIn(`/runs/${run.id}?view=terminal`);
  const { page } = tab;
  await openShell(page);
  const paste = (text: string) =>
    page.locator(".xterm-helper-textarea").evaluate((area, pasted) => {
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", pasted);
      area.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
    }, text);
  await paste("echo one\u001b[201~\necho two\n");
  const question = page.getByRole("dialog");
  await question.getByText("Paste 2 lines?").waitFor();
  await question.getByRole("button", { name: "Cancel" }).click();
  await question.waitFor({ state: "detached" });
  const pasteAll = async () => {
    await paste("echo three[201~\necho four\n");
    await question.getByRole("button", { name: "Paste", exact: true }).click();
    await question.waitFor({ state: "detached" });
  };
  await untilObeyed(page, pasteAll, async () => (await isShown(page, "four")) && (await isShown(page, "three[201~")));
  const text = (await rows(page)).join("\n");
  expect(text).toContain("three[201~");
  expect(text).not.toContain("echo one");
});

test("the keys leave it", async () => {
  await using tab = await scene.signedIn(`/runs/${run.id}?view=terminal`);
  const { page } = tab;
  await page.getByRole("button", { name: "Open a shell" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText(/^Attached to process/).waitFor();
  await typeUntil(page, "echo by keys", () => isShown(page, "by keys"));
  await page.keyboard.press("Tab");
  await drawn(page);
  expect(await page.evaluate(() => document.activeElement?.className)).toContain("xterm");
  await page.keyboard.press("Control+Alt+Escape");
  await hasFocus(page.getByRole("button", { name: "Detach" }));
  await page.keyboard.press("Enter");
  await page.locator(".table").waitFor();
});

test("a terminal that loads late leaves the focus where the user moved it", async () => {
  await using tab = await scene.signedIn("/runs");
  const { page } = tab;
  const goOn = await held(page, /\/web\/assets\/screen-[^/]*\.js$/);
  await page.goto(`/runs/${run.id}?view=terminal`);
  await page.getByRole("button", { name: "Open a shell" }).click();
  const detach = page.getByRole("button", { name: "Detach" });
  await detach.focus();
  goOn();
  await page.getByText(/^Attached to process/).waitFor();
  await drawn(page);
  await hasFocus(detach);
  await page.keyboard.press("Enter");
  await page.locator(".table").waitFor();
});

test("a run whose command has a terminal opens with it", async () => {
  const client = new Client({ url: scene.appliance.url, token: scene.appliance.token });
  const own = await Run.start(client, {
    ...{ image: "tag:busybox", command: "sh", pty: { rows: 24, cols: 80 }, stdin_open: true, disposable: true },
    env: { TERM: "xterm-256color" },
  });
  await using tab = await scene.signedIn(`/runs/${own.id}`);
  const { page } = tab;
  await page.getByText("Attached to process 1.").waitFor();
  await typeUntil(page, "echo $((2 * 21)) of its own", () => isShown(page, "42 of its own"));
  await typeUntil(page, "exit 3", () => page.getByText("The process has ended with exit code 3.").isVisible());
  await page.locator(".run-about").getByText("Exit 3", { exact: true }).waitFor();
  await page.reload();
  await shows(page, "42 of its own");
});

test("processes are started, read, signalled and ended", async () => {
  await using tab = await scene.signedIn(`/runs/${run.id}?view=processes`);
  const { page } = tab;
  await page.getByRole("button", { name: "Start a process" }).click();
  const question = page.getByRole("dialog");
  await question.getByLabel("Shell command").fill("echo second; sleep 1234");
  await question.getByRole("button", { name: "Start", exact: true }).click();
  const row = page.getByRole("row", { name: /sleep 1234/ });
  await row.getByText("Running").waitFor();
  await row.getByRole("button").click();
  await page.getByRole("menuitem", { name: "Output" }).click();
  await page.getByText("second", { exact: true }).waitFor();
  await page.getByRole("link", { name: "Processes" }).click();
  await row.getByRole("button").click();
  await page.getByRole("menuitem", { name: /TERM/ }).click();
  await row.getByText("Signal 15").waitFor();
});

test("a program that repeats endlessly does not block the page", async () => {
  await using tab = await scene.signedIn(`/runs/${run.id}?view=terminal`);
  const { page } = tab;
  await openShell(page);
  const endless = "printf 'x\\033[2147483647%s' L M S T I Z b; echo; echo still here";
  await typeUntil(page, endless, () => isShown(page, "still here"));
  // A reasonable number of repetitions works.
  await typeUntil(page, "printf 'ab\\033[3b\\n'", () => isShown(page, "abbbb"));
  await page.getByRole("button", { name: "Detach" }).click();
});
