import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { chmod, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { publishOperation } from "../../../src/db/publish.ts";
import type { LayerId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { isIndexIntact, upgradeIndex } from "../../../src/storage/index/index-upgrade.ts";
import { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { FORMAT_VERSION, LayerIndexError } from "../../../src/storage/index/layer-index-format.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { indexPath } from "../../../src/storage/layers/layers.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { IndexUpgrade } from "../../../src/supervisor/index-upgrade.ts";
import { addExecuting, newId, someImage, someLayer, type TestDatabase, testDatabase } from "../../support/database.ts";
import { throwing } from "../../support/failures.ts";
import { childrenAt, entryAt, headerOf } from "../../support/index-reading.ts";
import { makeLayer, testDirectory } from "../../support/layer-files.ts";

/** As version 0.1.0 before this form wrote it: a directory "d", a file "d/f" of 5 bytes at 4096, a symlink "l" to it. */
const OLD_INDEX = Buffer.from(
  [
    "Y29wcGlkeAABAAAABAAAAF4BAAAAAAAAACAAAAAAAAAFAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAfjFn5WQAAADtAQAA",
    "AAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABkAAEApAEAAAAAAAAAAAAA",
    "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAZGYAAQCkAQAAAAAAAAAAAAABAAAAAAAA",
    "AAAAAAAAAAAABQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABmAAAAAAAAAAAAEAAAAAAAAAUAAAAAAAAAbAABAKQB",
    "AAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADAAAAAAAAAGxkL2ZAAAAAAAAAAAEA",
    "AAACAAAAgAAAAAAAAAADAAAAAQAAABoBAAAAAAAAAAAAAAAAAADBAAAAAAAAAAEAAAAAAAAA",
  ].join(""),
  "base64",
);
const VERSION_OFFSET = 8;

let directory: string;
beforeEach(() => {
  directory = testDirectory("index-upgrade");
});
afterEach(() => rm(directory, { recursive: true }));
const at = (name: string): string => join(directory, name);
const versionOf = async (path: string): Promise<number> => (await readFile(path)).readUInt32LE(VERSION_OFFSET);

/** The entries of the index above. */
function found(path: string): unknown {
  const index = LayerIndex.open(path);
  const file = entryAt(index, "/d/f");
  const names = childrenAt(index, "/", null, 10).map(({ name }) => name);
  const extents = file === null ? [] : index.extents(file, 0, 10);
  index.close();
  const { tableCount, diskBytes } = headerOf(path);
  return { names, extents, size: file?.size, tableCount, diskBytes };
}
const FOUND = {
  names: ["d", "l"],
  extents: [{ logical: 0, physical: 4096, length: 5 }],
  size: 5,
  tableCount: 4,
  diskBytes: 8192,
};

describe("an index of the previous version", () => {
  test("can be read as it is", async () => {
    await writeFile(at("old"), OLD_INDEX);
    expect(await versionOf(at("old"))).toBe(FORMAT_VERSION - 1);
    expect(found(at("old"))).toMatchObject(FOUND);
    expect(await isIndexIntact(at("old"))).toBe(true);
  });

  test("is rewritten with the same content and mode, while others read it", async () => {
    await writeFile(at("old"), OLD_INDEX);
    await chmod(at("old"), 0o444);
    const reader = LayerIndex.open(at("old"));
    expect(await upgradeIndex(at("old"), at("new"))).toBe(true);
    expect(await versionOf(at("old"))).toBe(FORMAT_VERSION);
    expect(found(at("old"))).toMatchObject(FOUND);
    expect((await stat(at("old"))).mode & 0o7777).toBe(0o444);
    expect(entryAt(reader, "/d/f")).not.toBeNull();
    reader.close();
    expect(await readdir(directory)).toEqual(["old"]);
    expect(await upgradeIndex(at("old"), at("new"))).toBe(false);
  });

  test("stays when the rewriting fails, which leaves nothing beside it", async () => {
    await writeFile(at("old"), OLD_INDEX);
    await writeFile(at("full"), "");
    // A name that exists fails it in the middle, as a full disk would.
    expect(await throwing(upgradeIndex(at("old"), at("full")))).toThrow("EEXIST");
    expect(await readFile(at("old"))).toEqual(OLD_INDEX);
    expect((await readdir(directory)).sort()).toEqual(["full", "old"]);
  });
});

test("an index of the current version detects any changed byte", async () => {
  const { index } = await makeLayer(directory, [
    { path: "a", type: "d" },
    { path: "b", type: "l", target: "a" },
  ]);
  expect(await isIndexIntact(index)).toBe(true);
  const bytes = await readFile(index);
  for (const offset of [64, bytes.length - 1]) {
    const copy = Buffer.from(bytes);
    copy.writeUInt8((copy.readUInt8(offset) + 1) % 256, offset);
    await writeFile(at("damaged"), copy);
    expect(await isIndexIntact(at("damaged"))).toBe(false);
  }
  await writeFile(at("damaged"), bytes.subarray(0, 70));
  expect(await throwing(isIndexIntact(at("damaged")))).toThrow(LayerIndexError);
});

describe("the job beside a running appliance", () => {
  let opened: TestDatabase;
  beforeEach(() => {
    opened = testDatabase();
  });
  afterEach(() => opened[Symbol.dispose]());

  test("rewrites old indexes once, holding them, and skips damaged ones and those without a row", async () => {
    const { db } = opened;
    const layout = dataLayout(at("data"));
    await layout.ensure();
    const [kept, damaged] = [someLayer(), someLayer()];
    for (const layer of [kept, damaged]) {
      const operationId = addExecuting(db, { kind: "image_import" });
      const published = { operationId, result: {}, now: 1, layer, image: someImage(layer.id) };
      expect(publishOperation(db, published)).not.toBeNull();
    }
    const unknown = newId<LayerId>();
    for (const id of [kept.id, unknown]) await writeFile(indexPath(layout, id), OLD_INDEX);
    await writeFile(indexPath(layout, damaged.id), OLD_INDEX.subarray(0, 100));
    using layers = new LayerStore({ layout, chainOf: (id) => [id] });
    using hold = spyOn(layers, "hold");
    const pass = async () => {
      await using upgrade = new IndexUpgrade({ db, layout, layers, log: silentLog });
      await upgrade.begin();
    };
    await pass();
    expect(await versionOf(indexPath(layout, kept.id))).toBe(FORMAT_VERSION);
    expect(await versionOf(indexPath(layout, unknown))).toBe(FORMAT_VERSION - 1);
    expect((await readFile(indexPath(layout, damaged.id))).length).toBe(100);
    expect(hold.mock.calls.flat(2).sort()).toEqual([kept.id, damaged.id].sort());
    expect(layers.held).toEqual([]);
    expect((await readdir(layout.tmp)).filter((name) => name.startsWith("index-"))).toEqual([]);
    // This is remembered: later indexes are never of an older version.
    await writeFile(indexPath(layout, kept.id), OLD_INDEX);
    await pass();
    expect(await versionOf(indexPath(layout, kept.id))).toBe(FORMAT_VERSION - 1);
  });
});
