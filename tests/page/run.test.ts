import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Page } from "playwright-core";
import { Client } from "../../src/client/client.ts";
import { Run } from "../../src/client/runs.ts";
import { freePort } from "../support/free-port.ts";
import { CuttingRelay } from "../support/guests/cutting-relay.ts";
import { PageScene, signIn } from "../support/page/scene.ts";
import { viewProblems } from "../support/page/views.ts";
import { becomes, hasFocus } from "../support/page/waits.ts";

let scene: PageScene;
let client: Client;
beforeAll(async () => {
  // The daemon is started again at the same address.
  scene = await PageScene.start({ flags: ["--listen-port", String(await freePort())] });
  client = new Client({ url: scene.appliance.url, token: scene.appliance.token });
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

const start = (command: string, more: object = {}) =>
  Run.start(client, { image: "tag:busybox", command, shell: true, disposable: true, ...more });

/** Lines of output as they are shown, without times. */
const lines = (page: Page) => page.locator(".run-line-text").allTextContents();
/** Sends the line for which a command waits. */
const goOn = (run: Run) => scene.appliance.post(`/instances/${run.id}/processes/1/stdin`, { content: "go\n" });
const state = (page: Page, text: string) => page.locator(".run-about").getByText(text, { exact: true }).waitFor();

describe("a run", () => {
  test("is shown live, and can be stopped", async () => {
    const run = await start("echo first; echo problem >&2; sleep 600");
    await using tab = await scene.signedIn(`/runs/${run.id}`);
    const { page } = tab;
    await page.getByText("first", { exact: true }).waitFor();
    await page.getByText("problem", { exact: true }).waitFor();
    await state(page, "Running");
    // The stream also has a label.
    await becomes(() => page.locator(".run-line-stderr").textContent(), "errproblem");
    await page.getByRole("button", { name: "Times" }).click();
    await page.locator(".run-line-time").first().waitFor();
    expect(await viewProblems(tab, "run-output")).toEqual([]);
    for (const view of ["Processes", "Network", "Events"]) {
      const link = page.getByRole("link", { name: view });
      await link.click();
      await link.and(page.locator("[aria-current=page]")).waitFor();
      await page.locator(".table, .empty").first().waitFor();
      expect(await viewProblems(tab, `run-${view.toLowerCase()}`)).toEqual([]);
    }
    await page.getByRole("link", { name: "CPU and memory" }).click();
    await page.locator(".run-chart-place canvas").nth(1).waitFor();
    expect(await viewProblems(tab, "run-usage")).toEqual([]);
    await page.locator(".run-chart-place").first().focus();
    await page.keyboard.press("End");
    await page
      .locator(".run-chart-summary")
      .first()
      .getByText(/ at \d\d:\d\d:\d\d$/)
      .waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    const question = page.getByRole("dialog");
    await question.getByText("Stop this run?").waitFor();
    await question.getByRole("button", { name: "Stop" }).click();
    await state(page, "Cancelled");
  });

  test("that has ended is found again by its link, also after the daemon was started again", async () => {
    const run = await start("echo kept; exit 3", { disposable: false });
    const { image } = await run.result();
    await using tab = await scene.signedIn(`/runs/${run.id}`);
    const { page } = tab;
    await page.getByText("kept", { exact: true }).waitFor();
    await state(page, "Exit 3");
    await scene.appliance.down();
    await scene.appliance.up();
    tab.expectProblem(/ERR_CONNECTION_REFUSED|Failed to load resource/);
    await page.reload();
    await page.getByText("kept", { exact: true }).waitFor();
    await state(page, "Exit 3");
    await page.locator(`a[href="/images/${image}"]`).first().waitFor();
    await page.getByRole("link", { name: "Fork from the end" }).click();
    await becomes(() => page.getByLabel("Image").inputValue(), image ?? "");
    expect(await viewProblems(tab, "run-form-fork")).toEqual([]);
  });

  test("is followed in as many windows as one likes, which share the connections of one browser", async () => {
    const run = await start("sleep 600");
    await using tab = await scene.signedIn(`/runs/${run.id}?view=usage`);
    await tab.page.locator(".run-chart-place canvas").nth(1).waitFor();
    for (let count = 2; count <= 4; count++) {
      const page = await tab.page.context().newPage();
      await page.goto(`/runs/${run.id}?view=usage`);
      await page.locator(".run-chart-place canvas").nth(1).waitFor();
    }
    await tab.page.getByRole("button", { name: "Stop" }).click();
    await tab.page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
    for (const page of tab.page.context().pages()) await state(page, "Cancelled");
  });

  test("tells its figures in words where the chart does not come", async () => {
    const run = await start("sleep 600");
    await using tab = await scene.signedIn("/runs");
    tab.expectProblem(/404|dynamically imported module/);
    await tab.page.route("**/web/assets/chart-*.js", (route) => route.fulfill({ status: 404 }));
    await tab.page.goto(`/runs/${run.id}?view=usage`);
    await tab.page.getByText("The chart could not be loaded.").first().waitFor();
    await tab.page.locator(".run-chart-summary").first().filter({ hasText: /./ }).waitFor();
    await scene.appliance.fetch(`/operations/${run.id}`, { method: "DELETE" });
  });

  test("of which there is no record says so", async () => {
    await using tab = await scene.signedIn("/runs/0197a1d0-5a5e-7000-8000-3c6e0b8a9c15");
    await tab.page.getByText("No such run").waitFor();
    expect(await viewProblems(tab, "run-gone")).toEqual([]);
  });

  test("is shown without a gap or a duplicate when the connection breaks", async () => {
    await using relay = await CuttingRelay.open(scene.appliance.url, []);
    const command = "read line; for n in $(seq 1 40); do echo line $n; sleep 0.1; done";
    const run = await start(command, { stdin_open: true });
    // All lines are seen at once, so that none of them passes by.
    await using tab = await scene.browser.open(relay.url, { height: 2000 });
    const { page } = tab;
    tab.expectProblem(/ERR_|Failed to load resource/);
    await page.goto(`/runs/${run.id}`);
    await signIn(tab, scene.appliance.token);
    await state(page, "Running");
    await goOn(run);
    for (const seen of ["line 5", "line 20"]) {
      await page.getByText(seen, { exact: true }).waitFor();
      relay.cutAll();
    }
    await page.getByText("line 40", { exact: true }).waitFor();
    await state(page, "Done");
    const all = Array.from({ length: 40 }, (_, index) => `line ${index + 1}`);
    await becomes(() => lines(page), all);
  });
});

/** Lets a page believe that it is seen, or that another tab is. */
const show = (page: Page, state: DocumentVisibilityState) =>
  page.evaluate((value) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => value });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);

describe("a hidden page", () => {
  test("closes its streams, and continues without a gap or a duplicate when it is visible again", async () => {
    const command = "read line; for n in $(seq 1 60); do echo line $n; sleep 0.2; done";
    const run = await start(command, { stdin_open: true });
    await using tab = await scene.tab({ height: 2000 });
    const { page } = tab;
    const streams = new Set([`/v1/operations/${run.id}/events`, "/v1/changes"]);
    const areGone = Promise.withResolvers<void>();
    page.on("websocket", (socket) => {
      socket.on("close", () => {
        for (const path of streams) if (socket.url().includes(path)) streams.delete(path);
        if (streams.size === 0) areGone.resolve();
      });
    });
    await page.goto(`/runs/${run.id}`);
    await signIn(tab, scene.appliance.token);
    await state(page, "Running");
    await goOn(run);
    await page.getByText("line 5", { exact: true }).waitFor();
    await show(page, "hidden");
    await areGone.promise;
    await show(page, "visible");
    await page.getByText("line 60", { exact: true }).waitFor();
    await state(page, "Done");
    const all = Array.from({ length: 60 }, (_, index) => `line ${index + 1}`);
    await becomes(() => lines(page), all);
  });
});

describe("output of a hostile guest", () => {
  test("is text, whatever it has", async () => {
    const script = [
      "printf '<img src=x onerror=alert(1)><script>alert(2)</script>\\n'",
      "printf '\\033]0;owned\\007\\033]52;c;ZXZpbA==\\007\\033]8;;http://evil.example/\\007link\\033]8;;\\007\\n'",
      "printf '\\033[31mred\\033[0m plain\\n'",
      "printf 'safe\\342\\200\\256txt.exe\\n'",
      "printf '10%%\\r50%%\\r100%%\\n'",
      "head -c 1048576 /dev/zero | tr '\\0' x; echo",
      "echo end",
    ];
    const run = await start(script.join("; "), { truncate_output_at: 10_485_760 });
    await using tab = await scene.signedIn(`/runs/${run.id}`);
    const { page } = tab;
    await page.getByText("end", { exact: true }).waitFor();
    const firstLines = async () => (await lines(page)).slice(0, 5);
    await becomes(firstLines, [
      ...["<img src=x onerror=alert(1)><script>alert(2)</script>", "link", "red plain", "safe\\u202etxt.exe", "100%"],
    ]);
    expect((await lines(page))[5]).toMatch(/^x{4096}… 1044480 more characters$/);
    expect(await page.locator(".run-lines img, .run-lines script, .run-lines a").count()).toBe(0);
    expect(await page.locator(".sgr-text-1").textContent()).toBe("red");
    // The title is the command, which contains the name of the sequence, not the sequence.
    await becomes(async () => /^printf '<img .* · Coppice$/.test(await page.title()), true);
    expect(await viewProblems(tab, "run-hostile")).toEqual([]);
  });

  test("without an end is bounded, and stays readable", async () => {
    const run = await start("seq 1 300000; echo the end; sleep 600", {
      truncate_output_at: 10_485_760,
    });
    await using tab = await scene.signedIn(`/runs/${run.id}`);
    const { page } = tab;
    await page.getByText("the end", { exact: true }).waitFor();
    expect(await page.locator(".run-line").count()).toBeLessThan(150);
    // By keys alone: to the search, and to the line that has the words.
    await page.keyboard.press("/");
    await hasFocus(page.getByRole("searchbox", { name: "Search in the output" }));
    await page.keyboard.type("the end");
    await page.keyboard.press("Enter");
    await page.getByText("1 of 1").waitFor();
    await page.getByRole("button", { name: "Load earlier output" }).click();
    await page.getByText("This is earlier output.").waitFor();
    // The newest 10,000 lines are those from 290,002 on, and "the end".
    await page.getByRole("log").focus();
    await page.keyboard.press("End");
    await page.locator(".run-line").getByText("290001", { exact: true }).waitFor();
    await becomes(() => page.locator(".run-line").last().textContent(), "290001");
    await page.getByRole("button", { name: "Follow" }).click();
    await page.getByText("the end", { exact: true }).waitFor();
    const [saved] = await Promise.all([
      page.waitForEvent("download"),
      (async () => {
        await page.getByRole("button", { name: "Download the output" }).click();
        await page.getByRole("menuitem", { name: "Standard output" }).click();
      })(),
    ]);
    expect(saved.suggestedFilename()).toMatch(/^run-[0-9a-f]{8}-stdout\.txt$/);
    expect((await Bun.file(await saved.path()).text()).split("\n")).toHaveLength(300_002);
    await run.cancel();
  });
});
