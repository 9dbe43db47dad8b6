import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { AccountId, ImageId } from "../../../src/domain/ids.ts";
import { BRANCHES_COUNT_MAX } from "../../../src/domain/tree/listing.ts";
import { Api, type CallOptions, errorOf } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { heldTest } from "../../support/api/program.ts";
import { UNKNOWN_UUID } from "../../support/api/samples.ts";

const FILES: readonly LayerFixture[] = [{ path: "f", type: "f", content: "f" }];
// biome-ignore lint/suspicious/noExplicitAny: rows of several types.
type Row = any;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

let accounts = 0;
/** An account of its own: other tests add images, too. */
async function someone(scopes: readonly string[] = ["*"]) {
  const account = `someone-${++accounts}`;
  const token = await api.issue(account, scopes);
  return { account, token, read: (query = "", options: CallOptions = {}) => read(query, { token, ...options }) };
}

async function read(query = "", options: CallOptions = {}): Promise<Row[]> {
  const answer = await api.call("GET", `/v1/branches${query}`, options);
  expect([answer.status, answer.headers.get("content-type")]).toEqual([200, "application/x-ndjson"]);
  expect(answer.text.endsWith("\n")).toBe(true);
  return answer.text
    .slice(0, -1)
    .split("\n")
    .map((line) => JSON.parse(line));
}

const images = (rows: readonly Row[]): Row[] => rows.filter(({ type }) => type === "image");
const uuids = (rows: readonly Row[]) => images(rows).map(({ uuid }) => uuid);

describe("images", () => {
  test("are ordered with parents first, and say how they were made", async () => {
    const { account, read } = await someone();
    const base = await api.addImage([FILES], { account, tag: "base", at: 1000 });
    const origin = { command: ["/bin/sh", "-c", "make\nmake install"], exitCode: 3, network: true };
    const child = await api.addRun(base, FILES, { account, origin, at: 2000 });
    const late = await api.addRun(child, FILES, { account, origin: { command: ["x"], timedOut: true }, at: 3000 });
    const kept = await api.addRun(base, FILES, { account, origin: { command: ["sleep", "9"] }, at: 4000 });
    const common = { type: "image", size_bytes: expect.any(Number), operation: expect.any(String) };
    expect(await read()).toEqual([
      { ...common, uuid: base, tag: "base", created_at: "1970-01-01T00:00:01.000Z", kind: "image_import" },
      {
        ...{ ...common, uuid: child, parent: base, created_at: "1970-01-01T00:00:02.000Z", kind: "instance" },
        ...{ about: "make make install", exit_code: 3, network: true },
      },
      {
        ...{ ...common, uuid: late, parent: child, created_at: "1970-01-01T00:00:03.000Z", kind: "instance" },
        ...{ about: "x", timed_out: true },
      },
      {
        ...{ ...common, uuid: kept, parent: base, created_at: "1970-01-01T00:00:04.000Z", kind: "checkpoint" },
        about: "sleep 9",
      },
      { type: "end", older: false },
    ]);
  });

  test("are those of the account", async () => {
    const [one, other] = [await someone(), await someone()];
    const image = await api.addImage([FILES], { account: one.account });
    expect(uuids(await one.read())).toEqual([image]);
    expect(await other.read()).toEqual([{ type: "end", older: false }]);
    errorOf(await api.call("GET", `/v1/branches?before=${image}`, { token: other.token }), "not_found");
  });

  test("hang from the nearest image that exists", async () => {
    const { account, token, read } = await someone();
    const root = await api.addImage([FILES], { account });
    let top: ImageId = root;
    const deleted: ImageId[] = [];
    for (let n = 0; n < 3; n++) {
      top = await api.addRun(top, FILES, { account });
      deleted.push(top);
    }
    const [leaf, sibling] = [await api.addRun(top, FILES, { account }), await api.addRun(top, FILES, { account })];
    for (const id of deleted) expect((await api.call("DELETE", `/v1/images/${id}`, { token })).status).toBe(204);
    const rows = images(await read()).map(({ uuid, parent, skipped }) => [uuid, parent, skipped]);
    expect(rows).toEqual([
      [root, undefined, undefined],
      [leaf, root, 3],
      [sibling, root, 3],
    ]);
    await api.call("DELETE", `/v1/images/${root}`, { token });
    expect(images(await read()).map(({ parent, skipped }) => [parent, skipped])).toEqual([
      [undefined, 4],
      [undefined, 4],
    ]);
  });

  test("hang from it even if a thousand in between are deleted", async () => {
    const { account, token, read } = await someone();
    const root = await api.addImage([FILES], { account });
    const first = await api.addRun(root, FILES, { account });
    const { db } = api.parts;
    // The remaining rows of deleted images.
    let above: string = first;
    for (let n = 0; n < 1000; n++) {
      const id = Bun.randomUUIDv7();
      db.orm.run(
        `insert into history (image_id, parent_id, operation_id, size_bytes, created_at) values ('${id}', '${above}', '${id}', 1, 1)`,
      );
      above = id;
    }
    const leaf = await api.addRun(root, FILES, { account });
    db.orm.run(`update history set parent_id = '${above}' where image_id = '${leaf}'`);
    db.orm.run(`update images set parent_id = null where id = '${leaf}'`);
    const [, , row] = images(await read());
    expect([row.uuid, row.parent, row.skipped]).toEqual([leaf, first, 1000]);
    await api.call("DELETE", `/v1/images/${leaf}`, { token });
  });

  test("are read in parts, the newest first", async () => {
    const { account, read } = await someone();
    const added: ImageId[] = [];
    for (let n = 0; n < 5; n++) added.push(await api.addImage([FILES], { account, at: n < 3 ? 7 : n }));
    // Images of one millisecond are in the order of their ids.
    const all = uuids(await read());
    expect(all.toSorted()).toEqual(added.toSorted());
    const parts: string[][] = [];
    for (let before = ""; ; before = `&before=${parts[0]?.[0]}`) {
      const rows = await read(`?limit=2${before}`);
      parts.unshift(uuids(rows));
      expect(rows.at(-1)).toEqual({ type: "end", older: parts.length < 3 });
      if (!rows.at(-1).older) break;
    }
    expect(parts).toEqual([all.slice(0, 1), all.slice(1, 3), all.slice(3)]);
    expect((await read("?limit=5")).at(-1)).toEqual({ type: "end", older: false });
    expect((await read(`?before=${(all[1] ?? "").toUpperCase()}`)).length).toBe(2);
  });

  test("are a JSON array when the client prefers one", async () => {
    const { account, token, read } = await someone();
    const json = async () =>
      (await api.call("GET", "/v1/branches", { token, headers: { accept: "application/json" } })).json;
    expect(await json()).toEqual([{ type: "end", older: false }]);
    await api.addImage([FILES], { account });
    expect(await json()).toEqual(await read());
  });

  test("a bad request is refused", async () => {
    for (const query of ["limit=0", `limit=${BRANCHES_COUNT_MAX + 1}`, "limit=x", "before=x"]) {
      errorOf(await api.call("GET", `/v1/branches?${query}`), "validation_error");
    }
    errorOf(await api.call("GET", `/v1/branches?before=${UNKNOWN_UUID}`), "not_found");
  });
});

describe("operations", () => {
  heldTest("that have not ended come first, with the image they run on", async () => {
    const { account, token, read } = await someone();
    const image = await api.addImage([FILES], { account });
    const spawned = async (command: string, more = {}) =>
      (await api.call("POST", "/v1/instances", { token, json: { image, command, ...more } })).json.uuid;
    const running = await spawned("make -j 2", { shell: true });
    const waiting = await spawned("sleep", { args: ["x".repeat(500)] });
    const registry = "registry.example.net/busybox:1.36";
    const pulling = (await api.call("POST", "/v1/images/import", { token, json: { registry } })).json.uuid;
    const ended = await spawned("true");
    api.operations.start(running);
    api.operations.cancel(account as AccountId, ended);
    const rows = await read();
    const common = { type: "operation", created_at: expect.any(String), status: "PENDING" };
    expect(rows.slice(0, 3)).toEqual([
      { ...common, uuid: waiting, kind: "instance", image, about: `sleep ${"x".repeat(74)}` },
      { ...common, uuid: pulling, kind: "image_import", about: registry },
      {
        ...{ ...common, uuid: running, kind: "instance", image, about: "make -j 2" },
        ...{ status: "EXECUTING", started_at: expect.any(String) },
      },
    ]);
    expect(rows.slice(3).map(({ type }) => type)).toEqual(["image", "end"]);
  });

  heldTest("are complete, however many there are", async () => {
    const { account, read } = await someone();
    const ids = Array.from({ length: 100 }, () => api.operations.insert(account as AccountId, "image_import").id);
    expect((await read()).map(({ uuid }) => uuid)).toEqual([...ids, undefined]);
  });

  test("are not for a token that may not read them", async () => {
    const { account, read } = await someone(["images:read"]);
    api.operations.insert(account as AccountId, "image_import");
    expect(await read()).toEqual([{ type: "end", older: false }]);
    const blind = await api.issue(account, ["operations:read"]);
    errorOf(await api.call("GET", "/v1/branches", { token: blind }), "forbidden");
  });
});
