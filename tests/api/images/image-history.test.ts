import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { HISTORY_COMMAND_BYTES_MAX } from "../../../src/db/images/history.ts";
import type { ImageId } from "../../../src/domain/ids.ts";
import { layerPath } from "../../../src/storage/layers/layers.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { heldTest } from "../../support/api/program.ts";
import { listLayers } from "../../support/images/layer-files.ts";
import { until } from "../../support/waiting.ts";

const RAW = Buffer.from([0x62, 0xff]);

const BASE: readonly LayerFixture[] = [
  { path: "etc", type: "d" },
  { path: "etc/keep", type: "f", content: "keep" },
  { path: "etc/edit", type: "f", content: "old" },
  { path: "etc/gone", type: "f", content: "gone!" },
  { path: "opt", type: "d" },
  { path: "opt/a", type: "d" },
  { path: "opt/a/x", type: "f", content: "1" },
  { path: "opt/b", type: "f", content: "22" },
  { path: "swap", type: "f", content: "file" },
  { path: "untouched", type: "d" },
  { path: "untouched/f", type: "f", content: "f" },
];
const STEP: readonly LayerFixture[] = [
  { path: "etc", type: "d" },
  { path: "etc/edit", type: "f", content: "newer" },
  { path: "etc/gone", type: "w" },
  { path: "etc/same-size", type: "f", content: "s" },
  { path: "opt", type: "d", opaque: true, mode: 0o700 },
  { path: "opt/c", type: "f", content: "333" },
  { path: "swap", type: "d" },
  { path: "swap/in", type: "f", content: "in" },
  { path: Buffer.concat([Buffer.from("etc/"), RAW]), type: "f", content: "raw" },
];
/** The changes of STEP, in the order of the walk. */
const CHANGES = [
  ["changed", "/etc/edit", 5, 3],
  ["added", "/etc/b\ufffd", 3, undefined],
  ["removed", "/etc/gone", undefined, 5],
  ["added", "/etc/same-size", 1, undefined],
  ["changed", "/opt", 0, 0],
  ["removed", "/opt/a", undefined, 0],
  ["removed", "/opt/a/x", undefined, 1],
  ["removed", "/opt/b", undefined, 2],
  ["added", "/opt/c", 3, undefined],
  ["changed", "/swap", 0, 4],
  ["added", "/swap/in", 2, undefined],
];

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const get = (path: string, token?: string) =>
  api.call("GET", `/v1/images/${path}`, token === undefined ? {} : { token });
const uuids = (items: readonly { uuid: string }[]) => items.map(({ uuid }) => uuid);
/** Deletes, and returns the status. */
const remove = async (id: string) => (await api.call("DELETE", `/v1/images/${id}`)).status;
const layersOnDisk = async () => (await listLayers(api.parts.layout)).size;

describe('"GET /images/{uuid}"', () => {
  test("returns the parent and the size that the image added", async () => {
    const base = await api.addImage([BASE], { tag: "details" });
    const child = await api.addRun(base, STEP);
    expect((await get(base)).json).toEqual({
      uuid: base,
      tag: "details",
      created_at: expect.any(String),
      size_bytes: expect.any(Number),
    });
    expect((await get(child)).json).toMatchObject({ uuid: child, parent: base, size_bytes: expect.any(Number) });
    errorOf(await get(child, api.foreignToken), "not_found");
  });
});

describe('"GET /images/{uuid}/lineage"', () => {
  test("returns operation, command, exit code, bytes and times, the image first", async () => {
    const base = await api.addImage([BASE]);
    const origin = { command: ["/bin/sh", "-c", "make; exit 3"], exitCode: 3, timedOut: false };
    const child = await api.addRun(base, STEP, { origin });
    const { json } = await get(`${child}/lineage`);
    expect(json).toEqual([
      {
        uuid: child,
        created_at: expect.any(String),
        parent: base,
        size_bytes: expect.any(Number),
        deleted: false,
        operation: expect.any(String),
        kind: "instance",
        command: origin.command,
        exit_code: 3,
        timed_out: false,
        started_at: expect.any(String),
      },
      {
        uuid: base,
        created_at: expect.any(String),
        size_bytes: expect.any(Number),
        deleted: false,
        operation: expect.any(String),
        kind: "image_import",
        started_at: expect.any(String),
      },
    ]);
    expect((await get(`${child}/lineage?limit=1&offset=1`)).json).toEqual([json[1]]);
    expect((await get(`${child}/lineage?offset=2`)).json).toEqual([]);
  });

  test("returns a long command truncated, and says so", async () => {
    const base = await api.addImage([BASE]);
    const command = ["tool", "x".repeat(HISTORY_COMMAND_BYTES_MAX - 4), "one too many"];
    const child = await api.addRun(base, STEP, { origin: { command } });
    const [step] = (await get(`${child}/lineage`)).json;
    expect(step).toMatchObject({ command: command.slice(0, 2), command_truncated: true });
  });

  test("has no gap for a deleted image, and ends with the last record", async () => {
    const base = await api.addImage([BASE]);
    const middle = await api.addRun(base, STEP, { origin: { command: ["middle"], exitCode: 0 } });
    const leaf = await api.addRun(middle, [{ path: "leaf", type: "f", content: "" }]);
    expect(await remove(middle)).toBe(204);
    const steps = (await get(`${leaf}/lineage`)).json;
    expect(uuids(steps)).toEqual([leaf, middle, base]);
    expect(steps[1]).toMatchObject({ deleted: true, command: ["middle"] });
    expect((await get(leaf)).json.parent).toBe(middle);
    errorOf(await get(`${middle}/lineage`), "not_found");
    expect((await get(`${base}/children`)).json).toMatchObject([{ uuid: middle, deleted: true }]);
    expect(await remove(leaf)).toBe(204);
    expect((await get(`${base}/children`)).json).toEqual([]);
  });

  test("of a long chain is one page", async () => {
    const ids = [await api.addImage([[]])] as ImageId[];
    for (let index = 0; index < 60; index++) ids.push(await api.addRun(ids.at(-1) ?? "", []));
    const { json } = await get(`${ids.at(-1)}/lineage?limit=1000`);
    expect(uuids(json)).toEqual(ids.toReversed());
  }, 60_000);
});

describe('"GET /images/{uuid}/children"', () => {
  test("returns images made from it by one run, or by any number, parents first", async () => {
    const base = await api.addImage([BASE]);
    const left = await api.addRun(base, STEP, { at: 1000 });
    const right = await api.addRun(base, STEP, { at: 2000 });
    const below = await api.addRun(left, [], { at: 3000 });
    expect(uuids((await get(`${base}/children`)).json)).toEqual([left, right]);
    expect(uuids((await get(`${base}/children?recursive=true`)).json)).toEqual([left, right, below]);
    expect(uuids((await get(`${base}/children?recursive=true&limit=1&offset=2`)).json)).toEqual([below]);
    expect((await get(`${below}/children`)).json).toEqual([]);
    errorOf(await get(`${base}/children?recursive=1`), "validation_error");
  });
});

describe('"GET /images/{uuid}/diff"', () => {
  type Item = {
    change: string;
    path: string;
    size_bytes?: number;
    previous_size_bytes?: number;
    [key: string]: unknown;
  };
  const rows = (items: readonly Item[]) =>
    items.map(({ change, path, size_bytes, previous_size_bytes }) => [change, path, size_bytes, previous_size_bytes]);
  const byPath = (changes: readonly unknown[][]) => changes.toSorted((a, b) => (String(a[1]) < String(b[1]) ? -1 : 1));
  let base = "";
  let child = "";
  beforeAll(async () => {
    base = await api.addImage([BASE]);
    child = await api.addRun(base, STEP);
  });

  test("returns added, changed and removed paths, with sizes", async () => {
    const { json } = await get(`${child}/diff`);
    expect(json).toMatchObject({ uuid: child, against: base });
    expect(json.next).toBeUndefined();
    expect(byPath(rows(json.items))).toEqual(byPath(CHANGES));
    const swapped = json.items.find(({ path }: Item) => path === "/swap");
    expect(swapped).toMatchObject({ type: "directory", previous_type: "file" });
    const raw = json.items.find(({ path }: Item) => path === "/etc/b\ufffd");
    expect(Buffer.from(raw.path_base64, "base64")).toEqual(Buffer.concat([Buffer.from("/etc/"), RAW]));
  });

  test("returns mode, owner, time and target of a symlink on both sides", async () => {
    const before = await api.addImage([
      [
        { path: "run", type: "f", content: "x", mode: 0o644 },
        { path: "link", type: "l", target: "run" },
      ],
    ]);
    const after = await api.addRun(before, [
      { path: "run", type: "f", content: "x", mode: 0o4755, uid: 7, gid: 8 },
      { path: "link", type: "l", target: RAW },
    ]);
    const { items } = (await get(`${after}/diff?about=true`)).json;
    const of = (path: string) => items.find((item: Item) => item.path === path);
    expect(of("/run")).toMatchObject({ mode: "4755", uid: 7, gid: 8, previous_mode: "0644", previous_uid: 0 });
    expect(of("/run")).toMatchObject({ modified_at: expect.any(String), previous_modified_at: expect.any(String) });
    expect(of("/run").symlink_to).toBeUndefined();
    expect(of("/link")).toMatchObject({ previous_symlink_to: "run", symlink_to_base64: RAW.toString("base64") });
    const removed = (await get(`${before}/diff?against=${child}&about=true`)).json.items.find(
      (item: Item) => item.change === "removed",
    );
    expect(removed).toMatchObject({ previous_mode: expect.any(String) });
    expect(removed.mode).toBeUndefined();
    const short = (await get(`${after}/diff`)).json.items[0];
    expect(Object.keys(short)).toEqual(["path", "change", "type", "size_bytes", "previous_size_bytes"]);
  });

  test("compares with any other image, in both directions", async () => {
    const back = (await get(`${base}/diff?against=${child}`)).json;
    const mirrored = CHANGES.map(([change, path, size, previous]) => [
      change === "added" ? "removed" : change === "removed" ? "added" : change,
      path,
      previous,
      size,
    ]);
    expect(byPath(rows(back.items))).toEqual(byPath(mirrored));
    expect((await get(`${child}/diff?against=${child}`)).json.items).toEqual([]);
    const sibling = await api.addRun(base, [{ path: "sibling", type: "f", content: "x" }]);
    const between = (await get(`${child}/diff?against=${sibling}`)).json.items;
    expect(byPath(rows(between))).toEqual(byPath([...CHANGES, ["removed", "/sibling", undefined, 1]]));
    const foreign = await api.addImage([BASE], { account: "bob" });
    errorOf(await get(`${child}/diff?against=${foreign}`), "not_found");
    errorOf(await get(`${child}/diff?against=x`), "validation_error");
  });

  test("of an imported image returns everything", async () => {
    const { json } = await get(`${base}/diff`);
    expect(json.against).toBeUndefined();
    expect(json.items).toHaveLength(BASE.length + 1);
    expect(new Set(json.items.map(({ change }: Item) => change))).toEqual(new Set(["added"]));
  });

  test("of two imports omits files with the same metadata", async () => {
    const other = await api.addImage([[...BASE, { path: "more", type: "f", content: "m" }]]);
    expect(rows((await get(`${other}/diff?against=${base}`)).json.items)).toEqual([["added", "/more", 1, undefined]]);
  });

  test("contains a file that was rewritten with the same size and time", async () => {
    const rewritten = await api.addRun(base, [
      { path: "etc", type: "d" },
      { path: "etc/keep", type: "f", content: "peek" },
    ]);
    expect(rows((await get(`${rewritten}/diff`)).json.items)).toEqual([["changed", "/etc/keep", 4, 4]]);
  });

  test("returns the same list in pages of any size", async () => {
    const whole = (await get(`${child}/diff`)).json.items;
    for (const limit of [1, 2, 3, 5, 10, 11]) {
      const items: Item[] = [];
      let cursor = "";
      do {
        const { json } = await get(`${child}/diff?limit=${limit}${cursor}`);
        expect(json.items.length).toBeLessThanOrEqual(limit);
        items.push(...json.items);
        cursor = json.next === undefined ? "" : `&cursor=${json.next}`;
      } while (cursor !== "");
      expect(items).toEqual(whole);
    }
    errorOf(await get(`${child}/diff?cursor=*`), "validation_error");
  });

  test("does not change when the parent is deleted", async () => {
    const parent = await api.addImage([BASE]);
    const image = await api.addRun(parent, STEP);
    const before = (await get(`${image}/diff`)).json;
    expect(await remove(parent)).toBe(204);
    expect((await get(`${image}/diff`)).json).toEqual(before);
  });
});

describe('"DELETE /images/{uuid}"', () => {
  test("removes the layers that nothing else needs, and only those", async () => {
    const before = await layersOnDisk();
    const base = await api.addImage([BASE], { tag: "doomed" });
    const left = await api.addRun(base, STEP);
    const right = await api.addRun(base, STEP);
    expect(await layersOnDisk()).toBe(before + 3);
    expect(await remove(base)).toBe(204);
    expect(await layersOnDisk()).toBe(before + 3);
    expect((await api.call("GET", `/v1/inspect/${left}/download?path=/etc/keep`)).text).toBe("keep");
    expect(await remove(left)).toBe(204);
    // The download ends before its reader releases the layers.
    await until("its layer is removed", async () => (await layersOnDisk()) === before + 2);
    expect(await remove(right)).toBe(204);
    await until("all layers are removed", async () => (await layersOnDisk()) === before);
    errorOf(await get(base), "not_found");
    errorOf(await api.call("GET", "/v1/inspect/?tag=doomed"), "not_found");
    expect(await remove(base)).toBe(404);
  });

  heldTest("is 409 while an instance that uses the image waits or runs, and not afterwards", async () => {
    const base = await api.addImage([BASE]);
    const { json } = await api.call("POST", "/v1/instances", { json: { image: base, command: "true" } });
    expect(await remove(base)).toBe(409);
    api.operations.start(json.uuid);
    expect(await remove(base)).toBe(409);
    api.operations.fail(json.uuid, { error: "unavailable", message: "ended", details: {} });
    expect(await remove(base)).toBe(204);
    expect((await api.call("GET", `/v1/operations/${json.uuid}`)).status).toBe(200);
  });

  heldTest("does not disturb a reader of the image", async () => {
    const image = await api.addImage([[{ path: "f", type: "f", content: "still here" }]]);
    const layers = [...(await listLayers(api.parts.layout))];
    const held = api.parts.layers.hold(layers);
    expect(await remove(image)).toBe(204);
    const paths = layers.map((id) => layerPath(api.parts.layout, id));
    expect(paths.filter((path) => !existsSync(path))).toEqual([]);
    held[Symbol.dispose]();
  });

  test("of another account's image is 404 and changes nothing", async () => {
    const base = await api.addImage([BASE], { account: "bob" });
    errorOf(await api.call("DELETE", `/v1/images/${base}`), "not_found");
    expect((await get(base, api.foreignToken)).status).toBe(200);
  });
});
