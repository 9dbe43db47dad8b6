import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { pressSequence, tabTo } from "../support/page/keys.ts";
import { PageScene } from "../support/page/scene.ts";
import type { Tab } from "../support/page/tab.ts";
import { settled, viewProblems } from "../support/page/views.ts";
import { becomes, drawn, hasFocus } from "../support/page/waits.ts";

/** Uploaded files expire at once, so that the collector always has one to remove. */
const TABLES = '[files]\nttl = "1s"';
const FILE_BYTES = 3_145_728;

let scene: PageScene;
/** of the account `root` */
let operator: string;
beforeAll(async () => {
  scene = await PageScene.start({ tables: TABLES });
  operator = await scene.appliance.createToken("root", "--scope", "*", "--scope", "operator");
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

const open = async (path: string, token?: string): Promise<Tab> => {
  const tab = await scene.signedIn(path, token === undefined ? {} : { token });
  await settled(tab);
  return tab;
};
const idOf = (token: string): string =>
  JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString()).jti as string;
const statusWith = async (token: string): Promise<number> => (await scene.appliance.fetch("/images", { token })).status;
/** The requests of a tab to the operator's part of the API. */
const askedAsOperator = (tab: Tab): string[] => tab.requests.filter((address) => address.includes("/operator/"));

describe("a session without the scope", () => {
  test("sees its own account and a note about operators, and requests nothing of theirs", async () => {
    const { appliance, image } = scene;
    const run = await appliance.spawn({ image, command: "sleep 600", shell: true });
    await using tab = await open("/appliance");
    const { page } = tab;
    const yours = page.getByRole("region", { name: "Your operations" });
    await yours.getByRole("link", { name: /sleep 600/ }).waitFor();
    expect(await yours.getByRole("link", { name: /sleep 600/ }).getAttribute("href")).toBe(`/runs/${run}`);
    const tabs = page.getByRole("navigation", { name: "Parts of the appliance" }).getByRole("link");
    await becomes(() => tabs.allTextContents(), ["Now", "Space", "Operations"]);
    const note = page.getByRole("complementary", { name: "For operators" });
    await note.getByText("coppice token create --account tester --scope '*' --scope operator").waitFor();
    expect(await viewProblems(tab, "appliance-now-own")).toEqual([]);

    // It disappears by itself when it ends.
    await appliance.fetch(`/operations/${run}`, { method: "DELETE" });
    await page.getByText("Nothing in progress").waitFor();

    await tabs.nth(1).click();
    await page.getByRole("table", { name: "Your largest images" }).getByRole("link").first().waitFor();
    expect(await page.getByRole("region", { name: "Disk" }).count()).toBe(0);
    expect(await viewProblems(tab, "appliance-space-own")).toEqual([]);
    for (const part of ["tokens", "health"]) {
      await page.goto(`/appliance/${part}`);
      await note.waitFor();
      expect(await page.getByRole("table").count()).toBe(0);
      expect(await page.getByRole("button", { name: "New token" }).count()).toBe(0);
    }
    expect(askedAsOperator(tab)).toEqual([]);
  });
});

describe("operations", () => {
  test("are filtered by the link, which follows the filters", async () => {
    const { appliance, image } = scene;
    await appliance.finished(await appliance.spawn({ image, command: "exit 3", shell: true }));
    await using tab = await open("/appliance/operations?kind=image_import");
    const { page } = tab;
    const rows = page.getByRole("table").getByRole("row");
    const kinds = async () => {
      await settled(tab);
      return [...new Set(await page.locator("td[data-label=Kind]").allTextContents())];
    };
    await becomes(kinds, ["Import"]);
    await page.getByLabel("Kind").selectOption({ label: "Run" });
    await page.getByText("Exit 3").first().waitFor();
    await becomes(kinds, ["Run"]);
    await page.waitForURL((url) => url.search === "?kind=instance");
    await page.getByLabel("Status").selectOption({ label: "Failed" });
    await page.getByText("No matching operations").waitFor();
    await page.waitForURL((url) => url.searchParams.get("status") === "FAILED");
    await page.reload();
    await page.getByText("No matching operations").waitFor();
    await page.getByRole("link", { name: "Clear" }).click();
    await rows.nth(2).waitFor();
    await becomes(async () => (await kinds()).sort(), ["Import", "Run"]);
    // Invalid parts of a link are ignored.
    await page.goto("/appliance/operations?status=EVERYTHING&from=-7&since=x");
    await rows.nth(2).waitFor();
    expect(await viewProblems(tab, "appliance-operations")).toEqual([]);
    expect(askedAsOperator(tab)).toEqual([]);
  });

  test("appear when they begin, and keep their place when they end", async () => {
    await using tab = await open("/appliance/operations?kind=instance");
    const { page } = tab;
    const command = "sleep 60; echo appeared";
    const run = await scene.appliance.spawn({ image: scene.image, command, shell: true, disposable: true });
    const row = page.getByRole("row").filter({ hasText: "appeared" });
    await row.getByText("Running").waitFor();
    await scene.appliance.fetch(`/operations/${run}`, { method: "DELETE" });
    await row.getByText("Cancelled").waitFor();
  });
});

describe("an operator", () => {
  test("sees the budget and the work of all accounts as it changes", async () => {
    const { appliance, image } = scene;
    await using tab = await open("/appliance", operator);
    const { page } = tab;
    await page.getByText("Nothing is running or waiting.").waitFor();
    const memory = () => page.getByRole("meter", { name: "Memory" }).getAttribute("aria-valuetext");
    await becomes(async () => /^0 B of .* GiB$/.test((await memory()) ?? ""), true);
    const run = await appliance.spawn({ image, command: "sleep 600", shell: true });
    const row = page.getByRole("table", { name: "Work by account" }).getByRole("row", { name: /tester/ });
    await row.waitFor();
    await page.waitForFunction(
      () => Number(document.querySelector("[role=meter][aria-label='Virtual CPUs']")?.ariaValueNow) > 0,
    );
    // The operations of other accounts are not shown.
    expect(await page.getByRole("link", { name: /sleep 600/ }).count()).toBe(0);
    expect(await viewProblems(tab, "appliance-now")).toEqual([]);
    await appliance.fetch(`/operations/${run}`, { method: "DELETE" });
    await page.getByText("Nothing is running or waiting.").waitFor();
  });

  test("sees the use of the disk, and collects after a question", async () => {
    const { appliance } = scene;
    const body = new Uint8Array(FILE_BYTES).fill(7);
    const headers = { "content-type": "application/octet-stream" };
    const { uuid } = (await (await appliance.fetch("/files", { method: "POST", headers, body })).json()) as {
      uuid: string;
    };
    await using tab = await open("/appliance/space", operator);
    const { page } = tab;
    const collector = page.getByRole("region", { name: "Collector" });
    const collect = collector.getByRole("button", { name: "Collect now…" });
    // It expires within a second.
    while (!(await collect.isVisible())) {
      await page.reload();
      await settled(tab);
    }
    await collector.getByText("3.0 MiB").first().waitFor();
    await page.getByRole("table", { name: "Space by account" }).getByText("tester").waitFor();
    await page.getByRole("table", { name: "Largest images" }).getByText("busybox").waitFor();
    // The image is another account's, so it has no link.
    expect(await page.getByRole("table", { name: "Largest images" }).getByRole("link").count()).toBe(0);
    expect(await viewProblems(tab, "appliance-space")).toEqual([]);

    await collect.click();
    const question = page.getByRole("dialog", { name: "Collect now?" });
    await question.getByText("cannot be restored").waitFor();
    await question.getByRole("button", { name: "Cancel" }).click();
    await question.waitFor({ state: "detached" });
    await drawn(page);
    expect((await appliance.fetch(`/files?uuid=${uuid}`)).status).toBe(200);
    await collect.click();
    await question.waitFor();
    expect(await viewProblems(tab, "appliance-collect")).toEqual([]);
    await question.getByRole("button", { name: "Collect" }).click();
    await page.getByText(/The collector gave back 3\.0 MiB/).waitFor();
    await collector.getByText("There is nothing to free now.").waitFor();
    expect((await appliance.fetch(`/files?uuid=${uuid}`)).status).toBe(404);
  });

  test("creates a token that is shown once, and revokes it after a question", async () => {
    await using tab = await open("/appliance/tokens", operator);
    const { page } = tab;
    await page.getByRole("table", { name: "Tokens" }).getByText("this session").waitFor();
    expect(await viewProblems(tab, "appliance-tokens")).toEqual([]);
    await page.getByRole("button", { name: "New token" }).click();
    const form = page.getByRole("dialog", { name: "New token" });
    await form.getByLabel("Account").fill("two words");
    await form.getByRole("button", { name: "Create token" }).click();
    await form.getByText(/Up to 128 letters/).waitFor();
    await form.getByLabel("Account").fill("robot");
    await form.getByLabel("Scopes", { exact: true }).selectOption({ label: "Selected scopes" });
    await form.getByLabel("files:read").uncheck();
    await form.getByLabel("instances:spawn").check();
    await form.getByLabel("Valid for").selectOption({ label: "1 day" });
    expect(await viewProblems(tab, "appliance-new-token")).toEqual([]);
    await form.getByRole("button", { name: "Create token" }).click();

    const dialog = page.getByRole("dialog", { name: "Token created" });
    const secret = (await dialog.locator("code").textContent()) ?? "";
    const claims = JSON.parse(Buffer.from(secret.split(".")[1] ?? "", "base64url").toString());
    expect(claims).toMatchObject({ sub: "robot", scope: "images:read instances:spawn instances:read operations:read" });
    expect(claims.exp - claims.iat).toBe(86_400);
    expect(await statusWith(secret)).toBe(200);
    expect(await viewProblems(tab, "appliance-made-token")).toEqual([]);
    // The first attempt to close it only warns; the second one closes it for good.
    await page.keyboard.press("Escape");
    await dialog.getByText(/It cannot be shown again/).waitFor();
    await dialog.getByRole("button", { name: "Done" }).click();
    await dialog.waitFor({ state: "detached" });
    expect(await page.content()).not.toContain(secret);
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, location.href]));
    expect(kept).not.toContain(secret);

    const revoke = page.getByRole("button", { name: /^Revoke .* of robot$/ });
    await revoke.click();
    const question = page.getByRole("dialog", { name: "Revoke a token" });
    await question.getByText("robot").first().waitFor();
    expect(await viewProblems(tab, "appliance-revoke")).toEqual([]);
    await question.getByRole("button", { name: "Cancel" }).click();
    await question.waitFor({ state: "detached" });
    await drawn(page);
    expect(await statusWith(secret)).toBe(200);
    await revoke.click();
    await question.getByRole("button", { name: "Revoke" }).click();
    await revoke.waitFor({ state: "detached" });
    expect(await statusWith(secret)).toBe(401);
    await page.getByLabel("Status").selectOption({ label: "Revoked" });
    await page.getByLabel("Account").fill("robot");
    await page.waitForURL(/account=robot/);
    await page.getByRole("table", { name: "Tokens" }).getByText("revoked").waitFor();
    const filters = () => Object.fromEntries(new URL(page.url()).searchParams);
    await becomes(filters, { state: "revoked", account: "robot" });
  });

  test("reads many tokens in pages that are links", async () => {
    const body = { account: "many", scopes: ["files:read"], ttl: 600 };
    for (let count = 0; count < 60; count++) {
      expect((await scene.appliance.post("/operator/tokens", body, operator)).status).toBe(201);
    }
    await using tab = await open("/appliance/tokens?account=many", operator);
    const { page } = tab;
    const revokes = page.getByRole("button", { name: /^Revoke .* of many$/ });
    const pages = page.getByRole("navigation", { name: "Pages" });
    await pages.getByText("1 to 50").waitFor();
    await becomes(() => revokes.count(), 50);
    await pages.getByRole("link", { name: "Older" }).click();
    await pages.getByText("51 to 60").waitFor();
    await becomes(() => revokes.count(), 10);
    expect(await pages.getByRole("link", { name: "Older" }).count()).toBe(0);
    await page.reload();
    await pages.getByText("51 to 60").waitFor();
    await pages.getByRole("link", { name: "Newer" }).click();
    await pages.getByText("1 to 50").waitFor();
    await page.goto("/appliance/no-such-part");
    await page.getByRole("heading", { name: "Page not found" }).waitFor();
  });

  test("who revokes the token of the session is warned, and signed out", async () => {
    const own = await scene.appliance.createToken("ann", "--scope", "operator");
    await using tab = await open("/appliance/tokens?account=ann", own);
    const { page } = tab;
    await page.getByRole("button", { name: `Revoke ${idOf(own).slice(-8)} of ann` }).click();
    const question = page.getByRole("dialog", { name: "Revoke a token" });
    await question.getByText(/you will be signed out/).waitFor();
    await question.getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("button", { name: /^sign in$/i }).waitFor();
    expect(await statusWith(own)).toBe(401);
  });

  test("sees the findings of doctor", async () => {
    await using tab = await open("/appliance/health", operator);
    const { page } = tab;
    await page.getByRole("heading", { level: 3, name: "skopeo" }).waitFor();
    await page.getByRole("heading", { level: 3, name: "name servers" }).waitFor();
    await becomes(() => page.getByText(/^Checked/).count(), 1);
    expect(await viewProblems(tab, "appliance-health")).toEqual([]);
  });

  test("does it all by the keyboard, and returns to the start", async () => {
    await using tab = await open("/", operator);
    const { page } = tab;
    await pressSequence(page, "ga");
    await page.getByRole("heading", { level: 1, name: "Appliance" }).waitFor();
    await tabTo(tab, page.getByRole("link", { name: "Tokens" }));
    await page.keyboard.press("Enter");
    await page.getByRole("table", { name: "Tokens" }).waitFor();
    const begin = page.getByRole("button", { name: "New token" });
    await tabTo(tab, begin);
    await page.keyboard.press("Enter");
    const form = page.getByRole("dialog", { name: "New token" });
    await form.waitFor();
    await page.keyboard.press("Escape");
    await form.waitFor({ state: "detached" });
    await hasFocus(begin);
    await page.keyboard.press("Enter");
    await form.getByLabel("Account").focus();
    await page.keyboard.press("Control+a");
    await page.keyboard.type("keys");
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog", { name: "Token created" });
    await dialog.waitFor();
    await hasFocus(dialog.getByText(/^eyJ/));
    await tabTo(tab, dialog.getByRole("button", { name: "Done" }));
    await page.keyboard.press("Enter");
    await dialog.waitFor({ state: "detached" });
    await tabTo(tab, page.getByRole("button", { name: /^Revoke .* of keys$/ }));
    await page.keyboard.press("Enter");
    const question = page.getByRole("dialog", { name: "Revoke a token" });
    await tabTo(tab, question.getByRole("button", { name: "Revoke" }));
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: /of keys$/ }).waitFor({ state: "detached" });
  });
});
