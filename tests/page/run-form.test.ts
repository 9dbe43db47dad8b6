import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Client } from "../../src/client/client.ts";
import { Run } from "../../src/client/runs.ts";
import { PageScene } from "../support/page/scene.ts";
import { viewProblems } from "../support/page/views.ts";
import { becomes } from "../support/page/waits.ts";

let scene: PageScene;
beforeAll(async () => {
  scene = await PageScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

describe("the form of a run", () => {
  test("runs a command with files, variables and limits, tags the result, and runs it again", async () => {
    await using tab = await scene.signedIn("/runs/new");
    const { page } = tab;
    await page.getByLabel("Image").fill("tag:busybox");
    await page.getByLabel("Command", { exact: true }).fill('cat in.txt; echo "$GREETING"; nproc');
    await page.locator("input[type=file]").setInputFiles({
      name: "in.txt",
      mimeType: "text/plain",
      buffer: Buffer.from("of a file\n"),
    });
    await page.getByText("Variables and directory").click();
    await page.getByRole("button", { name: "Add a variable" }).click();
    await page.getByLabel("Name", { exact: true }).fill("GREETING");
    await page.getByLabel("Value").fill("hello $HOME");
    await page.getByText("Limits", { exact: true }).click();
    await page.getByLabel("CPUs").fill("2");
    await page.getByLabel("Time", { exact: true }).fill("2m");
    await page.getByText("User, host name and tag").click();
    await page.getByLabel("Tag for the result").fill("made-here");
    expect(await viewProblems(tab, "run-form")).toEqual([]);
    await page.getByRole("button", { name: "Copy as a command" }).click();
    await page.getByText("coppice run", { exact: false }).first().waitFor();
    await page.locator(".run-command-text").getByText("--env 'GREETING=hello $HOME'").first().waitFor();
    expect(await viewProblems(tab, "run-form-copy")).toEqual([]);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    for (const line of ["of a file", "hello $HOME", "2"]) {
      await page.locator(".run-line-text").getByText(line, { exact: true }).waitFor();
    }
    await page.getByRole("link", { name: "made-here" }).waitFor();

    await page.getByRole("link", { name: "Run again" }).click();
    const command = page.getByLabel("Command", { exact: true });
    await becomes(() => command.inputValue(), 'cat in.txt; echo "$GREETING"; nproc');
    await becomes(() => page.getByLabel("CPUs").inputValue(), "2");
    await page.getByText("Uploaded before").waitFor();
    await page.getByLabel("Value").fill("again");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.locator(".run-line-text").getByText("again", { exact: true }).waitFor();
  });

  test("tags the result also when the window is closed before the end", async () => {
    const tab = await scene.signedIn("/runs/new?image=tag:busybox");
    const { page } = tab;
    await page.getByLabel("Command", { exact: true }).fill("read line; echo $line > /root/line");
    await page.getByText("Input and terminal").click();
    await page.getByLabel("Keep standard input open").check();
    await page.getByText("User, host name and tag").click();
    await page.getByLabel("Tag for the result").fill("closed-window");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.locator(".run-about").getByText("Running", { exact: true }).waitFor();
    await page.getByText("The image of the result will get the tag closed-window.").waitFor();
    const id = new URL(page.url()).pathname.split("/").at(-1) ?? "";
    await tab[Symbol.asyncDispose]();
    await scene.appliance.post(`/instances/${id}/processes/1/stdin`, { content: "go\n" });
    const client = new Client({ url: scene.appliance.url, token: scene.appliance.token });
    const { image } = await new Run(client, id).result();
    const tagged = (await (await scene.appliance.fetch("/images?tag=closed-window")).json()) as unknown;
    expect(tagged).toEqual([expect.objectContaining({ uuid: image, tag: "closed-window" })]);
  });

  test("tells what is wrong at its field, in the words of the appliance", async () => {
    await using tab = await scene.signedIn("/runs/new");
    const { page } = tab;
    const isWrong = (label: string) => page.getByLabel(label, { exact: true }).getAttribute("aria-invalid");
    await page.getByLabel("Image").fill("tag:busybox");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByText("command must be a string of at least one character").waitFor();
    await becomes(() => isWrong("Command"), "true");
    await page.getByLabel("Command", { exact: true }).fill("true");
    await page.getByText("Limits", { exact: true }).click();
    await page.getByLabel("Memory").fill("much");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page
      .getByText("resources.memory_bytes must be a size such as 512M, 512MiB or 2G, or a number of bytes")
      .waitFor();
    await page.getByLabel("Memory").fill("900G");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByText(/resources\.memory_bytes must be an integer from 1 to/).waitFor();
    await becomes(() => isWrong("Memory"), "true");
    await page.getByLabel("Memory").fill("");
    await page.getByText("User, host name and tag").click();
    await page.getByLabel("Tag for the result").fill("kept");
    await page.getByLabel("Disposable").check();
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByText("tag needs an image, and a disposable run makes none").waitFor();
    await becomes(() => isWrong("Tag for the result"), "true");
    await page.getByLabel("Disposable").uncheck();
    await page.getByText("Network", { exact: true }).click();
    await page.getByLabel("May connect to").selectOption("allow");
    await page.getByLabel("Rules").fill("example.org");
    expect(await viewProblems(tab, "run-form-wrong")).toEqual([]);
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.locator(".field-problem", { hasText: "network: the operator does not allow any" }).waitFor();
    await becomes(() => isWrong("Rules"), "true");
  });

  test("reads a program and its arguments, and shows them apart", async () => {
    await using tab = await scene.signedIn("/runs/new?image=tag:busybox");
    const { page } = tab;
    await page.getByLabel("Run as").selectOption("words");
    await page.getByLabel("Command", { exact: true }).fill("printf '%s|' 'a b' \"$HOME\"");
    await becomes(() => page.locator(".run-words li").allTextContents(), ["printf", "%s|", "a b", "$HOME"]);
    await page.keyboard.press("Control+Enter");
    await page.locator(".run-line-text").getByText("a b|$HOME|", { exact: true }).waitFor();
  });

  test("keeps standard input open, and the page writes to it", async () => {
    await using tab = await scene.signedIn("/runs/new?image=tag:busybox");
    const { page } = tab;
    await page.getByLabel("Command", { exact: true }).fill("while read line; do echo got $line; done; echo over");
    await page.getByText("Input and terminal").click();
    await page.getByLabel("Keep standard input open").check();
    await page.getByLabel("Disposable").check();
    await page.getByRole("button", { name: "Run", exact: true }).click();
    // The form has a field of that name, too.
    await page.locator(".run-about").getByText("Running", { exact: true }).waitFor();
    await page.getByRole("textbox", { name: "Standard input" }).fill("ünï");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText("got ünï", { exact: true }).waitFor();
    expect(await viewProblems(tab, "run-input")).toEqual([]);
    await page.getByRole("button", { name: "Close the input" }).click();
    await page.getByText("over", { exact: true }).waitFor();
  });
});

describe("the list of runs", () => {
  test("has what runs now, and keeps its filters in the link", async () => {
    const client = new Client({ url: scene.appliance.url, token: scene.appliance.token });
    const run = await Run.start(client, { image: "tag:busybox", command: "sleep", args: ["3600"], disposable: true });
    await using tab = await scene.signedIn("/runs");
    const { page } = tab;
    await page.getByRole("link", { name: "sleep 3600" }).waitFor();
    expect(await viewProblems(tab, "runs")).toEqual([]);
    await page.getByLabel("Kind").selectOption("image_import");
    await page
      .getByRole("row", { name: /Import/ })
      .first()
      .waitFor();
    await page.getByRole("link", { name: "sleep 3600" }).waitFor({ state: "detached" });
    await page.waitForURL((url) => url.search === "?kind=image_import");
    await page.reload();
    await page
      .getByRole("row", { name: /Import/ })
      .first()
      .waitFor();
    await page.getByRole("table").getByRole("link").first().click();
    await page.locator(".run-steps").waitFor();
    expect(await viewProblems(tab, "run-import")).toEqual([]);
    await page.goto("/runs?status=EXECUTING");
    await page.getByRole("link", { name: "sleep 3600" }).waitFor();
    await run.cancel();
    await page.getByRole("link", { name: "sleep 3600" }).waitFor({ state: "detached" });
    await page.goto("/runs?status=FAILED");
    await page.getByText("No matching operations").waitFor();
    expect(await viewProblems(tab, "runs-none")).toEqual([]);
  });

  test("a checkpoint of a run is asked for, and shown as it goes", async () => {
    await using tab = await scene.signedIn("/runs/new?image=tag:busybox");
    const { page } = tab;
    await page.getByLabel("Command", { exact: true }).fill("echo data > /root/f; sync; echo written; sleep 600");
    await page.keyboard.press("Control+Enter");
    await page.getByText("written", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Checkpoint" }).click();
    await page.getByRole("dialog").getByLabel("Tag").fill("half-way");
    expect(await viewProblems(tab, "run-checkpoint-question")).toEqual([]);
    await page.getByRole("dialog").getByRole("button", { name: "Checkpoint" }).click();
    await page.getByRole("link", { name: "half-way" }).waitFor();
    await page.locator(".run-about").getByText("Done", { exact: true }).waitFor();
    expect(await viewProblems(tab, "run-checkpoint")).toEqual([]);
  });
});
