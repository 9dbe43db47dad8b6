import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { getImage } from "../../../src/db/images/images.ts";
import { insertMergedLayer } from "../../../src/db/images/merged-layers.ts";
import { startOperation } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import type { AccountId, ImageId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { type LayerFixture, makeLayer } from "../../support/api/layers.ts";

const ALICE = "alice" as AccountId;
const RAW = Buffer.concat([Buffer.from("app/"), Buffer.from([0x62, 0xff])]);

const file = (path: string | Buffer, content: string, more: Partial<LayerFixture> = {}): LayerFixture => ({
  path,
  type: "f",
  content,
  ...more,
});
const directory = (path: string, more: Partial<LayerFixture> = {}): LayerFixture => ({ path, type: "d", ...more });

const BASE = [
  directory("app"),
  file("app/a.c", "one"),
  file("app/b.c", "two"),
  directory("app/lib"),
  file("app/lib/x", "x"),
  directory("etc"),
  file("etc/conf", "c"),
  { path: "link", type: "l", target: "app" } as const,
];

let api: Api;
/** images of one lineage, by what their commands did */
let base: ImageId;
let edited: ImageId;
let added: ImageId;
let removed: ImageId;
let remade: ImageId;
beforeAll(async () => {
  api = await Api.start();
  const run = (parent: string, command: string, fixtures: readonly LayerFixture[], exitCode = 0) =>
    api.addRun(parent, fixtures, { origin: { command: [command], exitCode } });
  base = await api.addImage([BASE]);
  edited = await run(base, "edit", [directory("app"), file("app/a.c", "longer", { mode: 0o600 })]);
  added = await run(
    edited,
    "add",
    [directory("app"), directory("app/lib"), file("app/lib/new", "n"), file(RAW, "r")],
    3,
  );
  removed = await run(added, "remove", [directory("app"), { path: "app/b.c", type: "w" }]);
  remade = await run(removed, "remake", [
    directory("app"),
    directory("app/lib", { opaque: true }),
    file("app/lib/x", "X"),
  ]);
});
afterAll(() => api[Symbol.asyncDispose]());

type Query = Record<string, string>;
const ask = (what: "log" | "blame", image: string, query: Query, token?: string) =>
  api.call("GET", `/v1/inspect/${image}/${what}?${new URLSearchParams(query)}`, token === undefined ? {} : { token });
interface Shown {
  readonly change: string;
  readonly below?: true;
  readonly step: { readonly uuid: string; readonly command?: readonly string[] };
}
/** Each change, and what made it. */
const linesOf = ({ items }: { readonly items: readonly Shown[] }) =>
  items.map(({ change, below, step }) => `${change}${below ? " below" : ""} by ${step.command?.join(" ") ?? "import"}`);
const log = async (image: string, path: string) => linesOf((await ask("log", image, { path })).json);
const blamed = async (image: string, path: string): Promise<Record<string, string>> => {
  const { items, steps } = (await ask("blame", image, { path })).json;
  const commands = new Map<string, string>(
    steps.map((step: Shown["step"]) => [step.uuid, step.command?.join(" ") ?? "import"]),
  );
  return Object.fromEntries(
    items.map((item: Shown & { name: string; image: string }) => [item.name, commands.get(item.image)]),
  );
};

/** A saved state of an instance that started from `on`: its layer lies there, whatever its parent is. */
async function addState(
  parent: ImageId,
  on: ImageId,
  command: string,
  fixtures: readonly LayerFixture[],
): Promise<ImageId> {
  const { db, layout } = api.parts;
  const below = getImage(db, ALICE, on)?.layerId ?? null;
  const { id, diskBytes, entryCount } = await makeLayer(layout, fixtures);
  const operation = api.operations.insert(ALICE, "checkpoint", null, false, on);
  const now = Date.now();
  startOperation(db, operation.id, now);
  const image = Bun.randomUUIDv7() as ImageId;
  publishOperation(db, {
    operationId: operation.id,
    result: { image },
    now,
    layer: { id, parentId: below, format: "ext4", sizeBytes: diskBytes, diskBytes, entryCount },
    image: {
      id: image,
      parentId: parent,
      layerId: id,
      sizeBytes: diskBytes,
      defaults: { variables: {}, cwd: null },
      origin: { command: [command] },
    },
  });
  return image;
}

describe('"GET /inspect/{uuid}/log"', () => {
  test("lists the steps that changed a file, the newest first, with what they changed", async () => {
    const { status, json } = await ask("log", remade, { path: "/app/a.c" });
    expect(status).toBe(200);
    expect(json).toEqual({
      uuid: remade,
      path: "/app/a.c",
      items: [
        {
          change: "modified",
          type: "file",
          size_bytes: 6,
          mode: "0600",
          modified_at: expect.any(String),
          previous_size_bytes: 3,
          previous_mode: "0644",
          step: expect.objectContaining({
            uuid: edited,
            parent: base,
            kind: "instance",
            command: ["edit"],
            exit_code: 0,
          }),
        },
        {
          change: "added",
          type: "file",
          size_bytes: 3,
          mode: "0644",
          modified_at: expect.any(String),
          step: expect.objectContaining({ uuid: base, kind: "image_import" }),
        },
      ],
    });
  });

  test("has the removal of a path that the image no longer has", async () => {
    expect(await log(remade, "/app/b.c")).toEqual(["removed by remove", "added by import"]);
    expect(await log(remade, "/app/lib/new")).toEqual(["removed by remake", "added by add"]);
  });

  test("of a directory has every change below it, and tells when it was replaced", async () => {
    expect(await log(remade, "/app/lib")).toEqual(["replaced by remake", "modified below by add", "added by import"]);
    expect(await log(remade, "/")).toEqual([
      "modified below by remake",
      "modified below by remove",
      "modified below by add",
      "modified below by edit",
      "added by import",
    ]);
    expect(await log(remade, "/etc")).toEqual(["added by import"]);
  });

  test("follows symlinks on the way, and not one at the end", async () => {
    const { json } = await ask("log", remade, { path: "/link/a.c" });
    expect(json.path).toBe("/app/a.c");
    expect(linesOf(json)).toEqual(["modified by edit", "added by import"]);
    expect((await ask("log", remade, { path: "/link/b.c" })).json.path).toBe("/app/b.c");
    expect((await ask("log", remade, { path: "/link" })).json).toMatchObject({
      path: "/link",
      items: [{ type: "symlink" }],
    });
    expect((await ask("log", remade, { path: "/link/no/such/b.c" })).status).toBe(404);
  });

  test("takes the bytes of a name that is not UTF-8", async () => {
    const { json } = await api.call("GET", `/v1/inspect/${remade}/log?path=/app/b%FF`);
    expect(json).toMatchObject({
      path: "/app/b\ufffd",
      path_base64: Buffer.from(`/${RAW.toString("latin1")}`, "latin1").toString("base64"),
    });
    expect(linesOf(json)).toEqual(["added by add"]);
  });

  test("tells a change of type, a whiteout of a parent, and a copy that changed nothing", async () => {
    const swapped = await api.addRun(base, [{ path: "app", type: "w" }, directory("etc"), directory("etc/conf")], {
      origin: { command: ["swap"] },
    });
    const copied = await api.addRun(
      swapped,
      [directory("etc"), directory("etc/conf"), { path: "link", type: "l", target: "app" }],
      {
        origin: { command: ["copy"] },
      },
    );
    expect(await log(copied, "/app/lib/x")).toEqual(["removed by swap", "added by import"]);
    const { json } = await ask("log", copied, { path: "/etc/conf" });
    expect(linesOf(json)).toEqual(["replaced by swap", "added by import"]);
    expect(json.items[0]).toMatchObject({ type: "directory", previous_type: "file", previous_size_bytes: 1 });
    expect(await log(copied, "/link")).toEqual(["added by import"]);
  });

  test("tells names of one file apart when one of them was written", async () => {
    const linked = await api.addImage([
      [file("one", "1", { nlink: 2 }), { ...file("two", ""), linkOf: "one", nlink: 2 }],
    ]);
    const written = await api.addRun(linked, [file("two", "22")], { origin: { command: ["write"] } });
    expect(await log(written, "/one")).toEqual(["added by import"]);
    expect(await log(written, "/two")).toEqual(["modified by write", "added by import"]);
  });

  test("has no gap where images were deleted", async () => {
    const first = await api.addRun(base, [file("f", "1")], { origin: { command: ["first"] }, at: 1000 });

    const second = await api.addRun(first, [file("f", "22")], { origin: { command: ["second"] }, at: 2000 });

    const third = await api.addRun(second, [file("g", "")], { origin: { command: ["third"] }, at: 3000 });
    for (const image of [second, first]) expect((await api.call("DELETE", `/v1/images/${image}`)).status).toBe(204);
    const { json } = await ask("log", third, { path: "/f" });
    expect(linesOf(json)).toEqual(["modified by second", "added by first"]);
    expect(json.items[0].step).toMatchObject({ uuid: second, deleted: true });
    expect(json.items[0]).not.toHaveProperty("unknown_steps");
  });

  test("compares the states of a running instance, whose layers are copies of one disk", async () => {
    const kept = file("kept", "k", { mtimeSeconds: 7 });
    const one = await addState(base, base, "loop 1", [kept, file("f", "1")]);
    const two = await addState(one, base, "loop 2", [kept, file("f", "22")]);
    const three = await addState(two, base, "loop 3", [kept, file("f", "333"), file("h", "")]);
    expect(await log(three, "/kept")).toEqual(["added by loop 1"]);
    expect(await log(three, "/f")).toEqual(["modified by loop 3", "modified by loop 2", "added by loop 1"]);
    expect((await api.call("DELETE", `/v1/images/${two}`)).status).toBe(204);
    const { json } = await ask("log", three, { path: "/f" });
    expect(linesOf(json)).toEqual(["modified by loop 3", "added by loop 1"]);
    expect(json.items[0].unknown_steps).toBe(1);
    expect(json.items[1]).not.toHaveProperty("unknown_steps");
  });

  test("is the same when layers are merged", async () => {
    const { db, layout } = api.parts;
    const layerOf = (image: ImageId) => getImage(db, ALICE, image)?.layerId ?? ("" as never);
    const before = (await ask("log", remade, { path: "/app" })).json;
    // Its files would give another answer.
    const merged = await makeLayer(layout, [directory("app", { opaque: true })]);
    const row = { accountId: ALICE, belowId: layerOf(base), topId: layerOf(remade), sizeBytes: 1, entryCount: 1 };
    expect(insertMergedLayer(db, { id: merged.id, ...row, now: 1 })).toBe(true);
    expect((await ask("log", remade, { path: "/app" })).json).toEqual(before);
    expect(linesOf(before)).toHaveLength(5);
  });

  test("gives pages that together have every change once", async () => {
    const items = [];
    let pages = 0;
    for (let cursor: string | undefined = "0"; cursor !== undefined; pages++) {
      const { json }: { json: { items: Shown[]; next?: string } } = await ask("log", remade, {
        path: "/app",
        limit: "2",
        cursor,
      });
      expect(json.items.length).toBeLessThanOrEqual(2);
      items.push(...json.items);
      cursor = json.next;
    }
    expect(pages).toBe(3);
    expect(linesOf({ items })).toEqual(await log(remade, "/app"));
    errorOf(await ask("log", remade, { path: "/app", cursor: "99" }), "not_found");
    errorOf(await ask("log", remade, { path: "/app", cursor: "-1" }), "validation_error");
  });

  test("refuses a path that no state has, and images of others", async () => {
    errorOf(await ask("log", remade, { path: "/none" }), "not_found");
    errorOf(await ask("log", remade, { path: "relative" }), "invalid_path");
    errorOf(await ask("log", remade, { path: "/app" }, api.foreignToken), "not_found");
  });

  test("answers a long lineage from its indexes, and holds no layer afterwards", async () => {
    let image = await api.addImage([[directory("d"), file("d/f", "0")]]);
    for (let index = 1; index <= 120; index++) {
      image = await api.addRun(image, [directory("d"), file(index % 40 === 0 ? "d/f" : "d/g", String(index))]);
    }
    const { json } = await ask("log", image, { path: "/d/f" });
    expect(json.items.map(({ change }: Shown) => change)).toEqual(["modified", "modified", "modified", "added"]);
    expect(api.parts.layers.held).toEqual([]);
  }, 60_000);
});

describe('"GET /inspect/{uuid}/blame"', () => {
  test("names the last step of each entry of a directory, with that of its contents for a directory", async () => {
    const { json } = await ask("blame", added, { path: "/app" });
    expect(json).toMatchObject({ uuid: added, path: "/app", type: "directory" });
    expect(json.items).toMatchObject([
      { name: "a.c", type: "file", size_bytes: 6, mode: "0600", image: edited, change: "modified" },
      { name: "b.c", image: base, change: "added" },
      { name: "b\ufffd", name_base64: Buffer.from([0x62, 0xff]).toString("base64"), image: added, change: "added" },
      { name: "lib", type: "directory", image: added, change: "modified", below: true },
    ]);
    expect(json.steps.map(({ uuid }: { uuid: string }) => uuid)).toEqual([added, edited, base]);
    expect(json.steps[0]).toMatchObject({ command: ["add"], exit_code: 3 });
    expect(await blamed(remade, "/app/lib")).toEqual({ x: "remake" });
    expect(await blamed(remade, "/")).toEqual({ app: "remake", etc: "import", link: "import" });
  });

  test("names the step of one file, or of a symlink itself", async () => {
    expect(await blamed(remade, "/link/a.c")).toEqual({ "a.c": "edit" });
    expect(await blamed(remade, "/link")).toEqual({ link: "import" });
  });

  test("gives pages of a directory", async () => {
    const first = (await ask("blame", added, { path: "/app", limit: "3" })).json;
    expect(first.items).toHaveLength(3);
    const last = (await ask("blame", added, { path: "/app", limit: "3", cursor: first.next })).json;
    expect(last.items.map(({ name }: { name: string }) => name)).toEqual(["lib"]);
    expect(last).not.toHaveProperty("next");
  });

  test("refuses what the image does not have", async () => {
    errorOf(await ask("blame", remade, { path: "/app/b.c" }), "not_found");
    errorOf(await ask("blame", remade, { path: "/app" }, api.foreignToken), "not_found");
    errorOf(await ask("blame", remade, { path: "/app", cursor: "!" }), "validation_error");
  });
});
