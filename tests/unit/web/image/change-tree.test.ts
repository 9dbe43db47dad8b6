import { describe, expect, test } from "bun:test";
import type { DiffItem } from "../../../../src/client/types.ts";
import { Slicer } from "../../../../src/web/data/slicer.ts";
import { changeTree, firstOpen, rowsOf } from "../../../../src/web/image/changes/change-tree.ts";
import { changedRange, compareRows } from "../../../../src/web/image/changes/compare-rows.ts";
import type { EncodedPath } from "../../../../src/web/image/paths.ts";

const change = (path: string, kind: DiffItem["change"], type: DiffItem["type"] = "file"): DiffItem => ({
  path,
  change: kind,
  type,
});

const ITEMS = [
  change("/etc/a", "changed"),
  change("/etc/b", "removed"),
  change("/usr/lib/python3/x.py", "added"),
  change("/usr/lib/python3/y.py", "added"),
  change("/var", "added", "directory"),
  change("/var/log", "added", "directory"),
];
const tree = (items = ITEMS) => changeTree(items, new Slicer({ pause: async () => undefined }));

/** Rows as depth and path, after the directories that share their row. */
const linesOf = (rows: ReturnType<typeof rowsOf>) =>
  rows.map(({ node, depth, above }) => `${depth} ${[...above.map(({ path }) => path), node.path].join(" > ")}`);

describe("the tree of differences", () => {
  test("counts the differences below each directory", async () => {
    const root = await tree();
    expect(root.counts).toEqual({ added: 4, changed: 1, removed: 1 });
    const etc = root.children.find(({ path }) => path === "/etc");
    expect([etc?.item, etc?.counts]).toEqual([null, { added: 0, changed: 1, removed: 1 }]);
    expect(root.children.find(({ path }) => path === "/var")?.counts).toEqual({ added: 2, changed: 0, removed: 0 });
  });

  test("folds directories, and joins those with a single different entry", async () => {
    const root = await tree();
    expect(linesOf(rowsOf(root, () => false))).toEqual(["0 /etc", "0 /usr > /usr/lib > /usr/lib/python3", "0 /var"]);
    expect(linesOf(rowsOf(root, (path) => path === "/usr/lib/python3"))).toEqual([
      "0 /etc",
      "0 /usr > /usr/lib > /usr/lib/python3",
      "1 /usr/lib/python3/x.py",
      "1 /usr/lib/python3/y.py",
      "0 /var",
    ]);
  });

  test("is open at first as far as there is room", async () => {
    const root = await tree();
    expect(firstOpen(root, 2).size).toBe(0);
    expect([...firstOpen(root, 100)]).toContain("/usr/lib" as EncodedPath);
    expect(rowsOf(root, (path) => firstOpen(root, 100).has(path))).toHaveLength(8);
  });

  test("has a row for the root only if the root differs", async () => {
    const root = await tree([change("/", "changed", "directory"), change("/a", "added")]);
    expect(linesOf(rowsOf(root, () => false))).toEqual(["0 /", "0 /a"]);
  });

  test("distinguishes paths by their bytes", async () => {
    const raw = (byte: number) => Buffer.from([0x2f, byte]).toString("base64");
    const root = await tree([
      { ...change("/\ufffd", "added"), path_base64: raw(0xfe) },
      { ...change("/\ufffd", "removed"), path_base64: raw(0xff) },
    ]);
    expect(root.children.map(({ path }) => path)).toEqual(["/%FE", "/%FF"] as EncodedPath[]);
  });
});

describe("rows of a comparison", () => {
  const kinds = (pieces: number[], isBeside: boolean, isUnfolded: (left: number) => boolean = () => false) =>
    compareRows(Uint32Array.from(pieces), isBeside, isUnfolded).map(
      ({ kind, left, right, count }) => `${kind} ${left} ${right}${kind === "fold" ? ` x${count}` : ""}`,
    );

  test("fold equal lines, except three around a change", () => {
    expect(kinds([0, 10, 1, 1, 0, 10], false)).toEqual([
      ...["fold 0 0 x7", "both 7 7", "both 8 8", "both 9 9", "removed 10 -1"],
      ...["both 11 10", "both 12 11", "both 13 12", "fold 14 13 x7"],
    ]);
    expect(kinds([0, 10, 1, 1], false, (left) => left === 0)).toHaveLength(11);
    expect(kinds([0, 4, 2, 1], false)).toEqual(["both 0 0", "both 1 1", "both 2 2", "both 3 3", "added -1 4"]);
  });

  test("are one below the other, or side by side", () => {
    expect(kinds([1, 2, 2, 1], false)).toEqual(["removed 0 -1", "removed 1 -1", "added -1 0"]);
    expect(kinds([1, 2, 2, 1], true)).toEqual(["replaced 0 0", "removed 1 -1"]);
    expect(kinds([2, 1, 0, 1], true)).toEqual(["added -1 0", "both 0 1"]);
  });

  test("map each line to its counterpart", () => {
    const rows = compareRows(Uint32Array.from([1, 2, 2, 1]), false, () => false);
    expect(rows.map(({ pair }) => pair)).toEqual([0, -1, 0]);
    expect(changedRange("let a = 1;", "let b = 1;")).toEqual({ head: 4, tail: 5 });
    expect(changedRange("aa", "a")).toEqual({ head: 1, tail: 0 });
  });
});
