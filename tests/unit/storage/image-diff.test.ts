import { afterAll, describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import fc from "fast-check";
import { type ByteString, type GuestPath, textToByteString } from "../../../src/domain/tree/guest-path.ts";
import { type Difference, imageDiff } from "../../../src/storage/tree/image-diff.ts";
import { ImageTree } from "../../../src/storage/tree/image-tree.ts";
import { type LayerFiles, OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import type { TestRecord } from "../../support/images/index-stream.ts";
import { makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("image-diff");
const open = new OpenLayers(8);
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function all(differences: AsyncIterable<Difference>): Promise<string[]> {
  const paths: string[] = [];
  for await (const { change, path } of differences) paths.push(`${change} ${path}`);
  return paths;
}

/** All entries of an image, with the fields that differ in these tests. */
async function contentOf(layers: readonly LayerFiles[]): Promise<Map<string, string>> {
  if (layers.length === 0) return new Map();
  const tree = new ImageTree(layers, open);
  const content = new Map<string, string>();
  for await (const { path, located } of tree.walk(await tree.stat("/" as GuestPath, { follow: true }))) {
    const { type, mode } = located.entry;
    // All entries are empty and have one time, so that nothing else differs between layers.
    content.set(`/${path}`, `${type}${mode}`);
  }
  return content;
}

const NAMES = ["a", "b", "c"];
const PATHS = NAMES.flatMap((x) => [x, ...NAMES.flatMap((y) => [`${x}/${y}`, ...NAMES.map((z) => `${x}/${y}/${z}`)])]);
const marks = fc.array(
  fc.record({
    path: fc.constantFrom(...PATHS),
    type: fc.constantFrom("f", "f", "d", "d", "d", "w"),
    opaque: fc.boolean(),
    mode: fc.constantFrom(0o700, 0o755),
  }),
  { maxLength: 14 },
);
const stack = fc.array(marks, { maxLength: 3 });

/** Records of a layer, without those whose parents are not directories of the same layer. */
function recordsOf(candidates: readonly TestRecord[]): TestRecord[] {
  const byPath = new Map(candidates.map((record) => [record.path, record]));
  const kept = new Map<string, TestRecord>();
  for (const path of PATHS) {
    const record = byPath.get(path);
    const parent = path.slice(0, Math.max(0, path.lastIndexOf("/")));
    if (record === undefined || (parent !== "" && kept.get(parent)?.type !== "d")) continue;
    kept.set(path, { ...record, opaque: record.type === "d" && record.opaque === true, size: 0n });
  }
  return [...kept.values()];
}

const layersOf = (layers: readonly (readonly TestRecord[])[]) =>
  Promise.all(layers.map((records) => makeLayer(directory, [{ path: "", type: "d" }, ...recordsOf(records)])));

describe("any two images", () => {
  test("differ as a comparison of all their entries does, also from any path", async () => {
    await fc.assert(
      fc.asyncProperty(stack, stack, stack, async (shared, one, other) => {
        const below = await layersOf(shared);
        const now = [...below, ...(await layersOf(one))];
        const before = [...below, ...(await layersOf(other))];
        fc.pre(now.length > 0);
        const [a, b] = [await contentOf(now), await contentOf(before)];
        const expected = [...new Set([...a.keys(), ...b.keys()])]
          .filter((path) => !a.has(path) || !b.has(path) || a.get(path) !== b.get(path))
          .map((path) => `${a.has(path) ? (b.has(path) ? "changed" : "added") : "removed"} ${path}`);
        const paths = await all(imageDiff({ now, before }, null, open));
        expect(paths.toSorted()).toEqual(expected.toSorted());
        expect(new Set(paths).size).toBe(paths.length);
        for (const [index, line] of paths.entries()) {
          const after = line.slice(line.indexOf("/")) as GuestPath;
          expect(await all(imageDiff({ now, before }, after, open))).toEqual(paths.slice(index + 1));
        }
      }),
      { numRuns: 200 },
    );
  }, 60_000);
});

describe("two images that share layers", () => {
  const file = (path: string, more: Partial<TestRecord> = {}): TestRecord => ({ path, type: "f", size: 5n, ...more });

  test.each<[string, Partial<TestRecord>]>([
    ["mode", { mode: 0o600 }],
    ["owner", { uid: 1 }],
    ["group", { gid: 4_000_000_000 }],
    ["size", { size: 6n }],
    ["time, by a nanosecond", { mtimeNanoseconds: 1 }],
    ["extended attributes", { xattrs: [["user.a", "b"]] }],
    ["kind", { type: "p", size: 0n }],
    ["content alone", {}],
  ])("differ by a file's %s", async (_what, change) => {
    const base = await makeLayer(directory, [{ path: "", type: "d" }, file("f")]);
    const top = await makeLayer(directory, [{ path: "", type: "d" }, file("f", change)]);
    expect(await all(imageDiff({ now: [base, top], before: [base] }, null, open))).toEqual(["changed /f"]);
  });

  test("and have a layer of their own differ by a file with equal metadata, unless one was made from the other", async () => {
    const base = await makeLayer(directory, [{ path: "", type: "d" }, file("f")]);
    const first = await makeLayer(directory, [{ path: "", type: "d" }, file("f"), file("g")]);
    const second = await makeLayer(directory, [{ path: "", type: "d" }, file("f"), file("g", { size: 6n })]);
    const layers = { now: [base, second], before: [base, first] };
    expect(await all(imageDiff(layers, null, open))).toEqual(["changed /f", "changed /g"]);
    expect(await all(imageDiff({ ...layers, isOneLine: true }, null, open))).toEqual(["changed /g"]);
  });

  test("do not differ by a directory's time, or by a link or device that was rewritten unchanged", async () => {
    const alike: TestRecord[] = [
      { path: "d", type: "d", mode: 0o755 },
      { path: "d/l", type: "l", target: "t", size: 1n },
      { path: "d/n", type: "c", rdev: [1, 3] },
    ];
    const base = await makeLayer(directory, [{ path: "", type: "d" }, ...alike]);
    const later = alike.map((record) => (record.type === "d" ? { ...record, mtimeSeconds: 9n } : record));
    const top = await makeLayer(directory, [{ path: "", type: "d", mtimeSeconds: 9n }, ...later]);
    expect(await all(imageDiff({ now: [base, top], before: [base] }, null, open))).toEqual([]);
  });

  test("are compared without reading shared layers", async () => {
    const many = Array.from({ length: 20_000 }, (_, index) => file(`f${index}`));
    const base = await makeLayer(directory, [{ path: "", type: "d" }, ...many]);
    const top = await makeLayer(directory, [{ path: "", type: "d" }, { path: "f5", type: "w" }, file("new")]);
    const walks: number[] = [];
    const comparisons: number[] = [];
    for (let round = 0; round < 5; round++) {
      const started = performance.now();
      expect((await contentOf([base])).size).toBe(20_001);
      const walked = performance.now();
      expect(await all(imageDiff({ now: [base, top], before: [base] }, null, open))).toEqual([
        "removed /f5",
        "added /new",
      ]);
      walks.push(walked - started);
      comparisons.push(performance.now() - walked);
    }
    // The fastest of each: others may have waited on a busy host.
    expect(Math.min(...comparisons)).toBeLessThan(Math.min(...walks) / 3);
  });
});

test("names sort by their bytes, and a cursor may name a missing entry", async () => {
  const names = ["a", "a!", "a/b", "ab", "é"].map((name) => textToByteString(name));
  const records = names.map((path): TestRecord => ({ path, type: path === "a" ? "d" : "f" }));
  const now = [await makeLayer(directory, [{ path: "", type: "d" }, ...records])];
  const list = await all(imageDiff({ now, before: [] }, null, open));
  expect(list.slice(1)).toEqual(["a", "a/b", "a!", "ab", "é"].map((name) => `added /${textToByteString(name)}`));
  const after = (path: string) => all(imageDiff({ now, before: [] }, path as ByteString as GuestPath, open));
  expect(await after("/a/a")).toEqual(list.slice(2));
  expect(await after("/aa/x/y")).toEqual(list.slice(4));
  expect(await after("/zz/")).toEqual(list.slice(5));
});
