/** Listings of sandboxes for clients of E2B. */
import { afterAll, beforeAll, expect } from "bun:test";
import { heldTest } from "../../support/api/program.ts";
import { E2bScene } from "../../support/e2b/scene.ts";

let scene: E2bScene;
const ids: string[] = [];
beforeAll(async () => {
  scene = await E2bScene.start();
  for (let at = 0; at < 4; at++) ids.push((await scene.create({ metadata: { at: `${at}`, "k &=%": "ü +/&=%" } })).id);
  expect((await scene.call("POST", `/sandboxes/${ids[3]}/pause`)).status).toBe(204);
  // One that this dialect did not make.
  ids.push((await scene.open()).id);
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

interface Page {
  readonly ids: readonly string[];
  readonly next: string | null;
}

async function list(query: Readonly<Record<string, string>> = {}): Promise<Page> {
  const { status, json, headers } = await scene.call("GET", `/v2/sandboxes?${new URLSearchParams(query)}`);
  expect([status, json]).toEqual([200, expect.any(Array)]);
  return { ids: json.map(({ sandboxID }: { sandboxID: string }) => sandboxID), next: headers.get("x-next-token") };
}

/** As clients encode it. */
function encoded(metadata: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(metadata).map((entry) => entry.map(encodeURIComponent) as [string, string]);
  return new URLSearchParams(pairs).toString();
}

heldTest("the newest is first, unless another order is asked for", async () => {
  expect(await list()).toEqual({ ids: ids.toReversed(), next: null });
  expect((await list({ order: "asc" })).ids).toEqual(ids);
});

heldTest("pages have a token, but the last one", async () => {
  const pages: Page[] = [];
  for (let token: string | null = ""; token !== null; token = pages.at(-1)?.next ?? null) {
    pages.push(await list({ limit: "2", nextToken: token, order: "asc" }));
  }
  expect(pages.map((page) => page.ids)).toEqual([ids.slice(0, 2), ids.slice(2, 4), ids.slice(4)]);
});

heldTest("an entry has what clients require", async () => {
  const { json } = await scene.call("GET", "/v2/sandboxes?limit=1");
  expect(json[0]).toEqual({
    ...{ sandboxID: ids[4], templateID: expect.any(String), clientID: "coppice", envdVersion: "0.6.4" },
    ...{ startedAt: expect.any(String), endAt: expect.any(String), state: "running", metadata: {} },
    ...{ cpuCount: expect.any(Number), memoryMB: expect.any(Number), diskSizeMB: expect.any(Number) },
  });
});

heldTest("filters apply together", async () => {
  expect((await list({ state: "paused" })).ids).toEqual([ids[3] as string]);
  expect((await list({ state: "running,paused" })).ids).toHaveLength(5);
  expect((await list({ metadata: encoded({ at: "2", "k &=%": "ü +/&=%" }) })).ids).toEqual([ids[2] as string]);
  expect((await list({ metadata: encoded({ at: "2", "k &=%": "x" }) })).ids).toEqual([]);
  expect((await list({ template: "base" })).ids).toEqual(ids.slice(0, 4).toReversed());
  expect((await list({ template: "nope" })).ids).toEqual([]);
  const { json } = await scene.call("GET", `/sandboxes/${ids[2]}`);
  const since = await list({ startedAfter: json.startedAt, order: "asc" });
  expect(since.ids).toEqual(ids.slice(2));
  const template = (await scene.call("GET", `/sandboxes/${ids[4]}`)).json.templateID;
  expect((await list({ template })).ids).toEqual([ids[4] as string]);
});

heldTest("a page of a template has as many sandboxes as one of all", async () => {
  const first = await list({ template: "base", limit: "3" });
  expect(first.ids).toEqual(ids.slice(1, 4).toReversed());
  expect((await list({ template: "base", limit: "3", nextToken: first.next ?? "" })).ids).toEqual([ids[0] as string]);
});

heldTest("the old listing has those that run", async () => {
  const old = async (query: string) => (await scene.call("GET", `/sandboxes${query}`)).json;
  expect((await old("")).map(({ sandboxID }: { sandboxID: string }) => sandboxID)).toEqual(
    ids.toReversed().filter((id) => id !== ids[3]),
  );
  expect(await old(`?${new URLSearchParams({ metadata: encoded({ at: "1" }) })}`)).toHaveLength(1);
});

heldTest("another account has none", async () => {
  const { status, json } = await scene.call("GET", "/v2/sandboxes", { key: scene.foreignKey });
  expect([status, json]).toEqual([200, []]);
});

heldTest.each(["state=dead", "order=up", "nextToken=x", "startedAfter=x", "limit=0", "metadata=a%3D%2525zz"])(
  "%s is refused",
  async (query) => {
    const { status, json } = await scene.call("GET", `/v2/sandboxes?${query}`);
    expect([status, json.code]).toEqual([400, 400]);
  },
);
