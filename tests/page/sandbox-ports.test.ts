import { afterAll, beforeAll, expect, test } from "bun:test";
import { freePort } from "../support/free-port.ts";
import { PageScene } from "../support/page/scene.ts";
import { viewProblems } from "../support/page/views.ts";
import { becomes } from "../support/page/waits.ts";

let scene: PageScene;
let port: number;
beforeAll(async () => {
  port = await freePort();
  scene = await PageScene.start({ tables: `[ingress]\nlisten = "127.0.0.1:${port}"\npublic = "allow"` });
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

/** Requests an address of the ingress: only browsers know names below `localhost`. */
async function visit(address: string): Promise<Response> {
  const { host, pathname, search } = new URL(address);
  return await fetch(`http://127.0.0.1:${port}${pathname}${search}`, { headers: { host }, redirect: "manual" });
}

test("a port is private, opened by a link, and public when its owner wants that", async () => {
  const start = { command: "mkdir -p /srv && echo from the guest > /srv/index.html && httpd -f -p 8080 -h /srv" };
  const opened = await scene.appliance.post("/sandboxes?wait=60", {
    ...{ image: "tag:busybox", name: "web", start: { ...start, shell: true } },
  });
  const { uuid } = (await opened.json()) as { uuid: string };
  await using tab = await scene.signedIn(`/sandboxes/${uuid}?view=ports`);
  const { page } = tab;
  await page.getByRole("button", { name: "Make a link" }).click();
  const link = page.getByRole("link", { name: "Open in another tab" });
  await link.waitFor();
  const address = (await link.getAttribute("href")) ?? "";
  const bare = new URL("/", address).href;
  expect((await visit(bare)).status).toBeGreaterThanOrEqual(401);
  const answer = await visit(address);
  expect([answer.status < 400, answer.headers.has("set-cookie")]).toEqual([true, true]);
  expect(await viewProblems(tab, "sandbox-ports-real")).toEqual([]);

  await page.getByLabel("Port 8080 is public").click();
  await page.getByRole("list", { name: "Public ports" }).getByRole("link").waitFor();
  await becomes(async () => (await visit(bare)).text(), "from the guest\n");
  await page.getByLabel("Port 8080 is public").click();
  await becomes(async () => (await visit(bare)).ok, false);
  await scene.appliance.fetch(`/sandboxes/${uuid}`, { method: "DELETE" });
});
