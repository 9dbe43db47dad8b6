import { afterAll, describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import fc from "fast-check";
import type { ApiError } from "../../../src/domain/errors.ts";
import type { GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { ImageTree } from "../../../src/storage/tree/image-tree.ts";
import { type LayerFiles, OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import type { TestRecord } from "../../support/images/index-stream.ts";
import { makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("image-tree");
const open = new OpenLayers(8);
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const path = (text: string) => text as GuestPath;
const dir = (name: string, opaque = false): TestRecord => ({ path: name, type: "d", opaque, mode: 0o755 });
const file = (name: string, mode = 0o644): TestRecord => ({ path: name, type: "f", mode });
const link = (name: string, target: string): TestRecord => ({ path: name, type: "l", target });
const whiteout = (name: string): TestRecord => ({ path: name, type: "w" });

async function filesOf(layers: readonly TestRecord[][]): Promise<LayerFiles[]> {
  const files: LayerFiles[] = [];
  for (const records of layers) files.push(await makeLayer(directory, records));
  return files;
}

async function tree(...layers: TestRecord[][]): Promise<ImageTree> {
  return new ImageTree(await filesOf(layers), open);
}

async function names(image: ImageTree, at: string): Promise<string[]> {
  const listed: string[] = [];
  for await (const entry of await image.list(path(at))) listed.push(`${entry.type}:${entry.name}`);
  return listed;
}

async function codeOf(action: () => unknown): Promise<string> {
  try {
    await action();
  } catch (error) {
    return (error as ApiError).code;
  }
  return "none";
}

const stat = (image: ImageTree, at: string, follow = true) => image.stat(path(at), { follow });

describe("merged layers", () => {
  test("a directory shows the entries of all layers, the topmost first", async () => {
    const image = await tree(
      [dir("etc"), file("etc/a", 0o600), file("etc/b")],
      [dir("etc"), file("etc/b", 0o777), file("etc/c")],
      [dir("etc"), file("etc/a", 0o644)],
    );
    expect(await names(image, "/etc")).toEqual(["f:a", "f:b", "f:c"]);
    expect((await stat(image, "/etc/a")).mode).toBe(0o644);
    expect((await stat(image, "/etc/b")).mode).toBe(0o777);
  });

  test("a whiteout hides what is below it, and a later layer can bring the name back", async () => {
    const image = await tree(
      [dir("d"), file("d/x"), dir("e"), file("e/old")],
      [whiteout("d"), dir("e"), whiteout("e/old")],
      [dir("d"), file("d/y")],
    );
    expect(await names(image, "/")).toEqual(["d:d", "d:e"]);
    expect(await names(image, "/d")).toEqual(["f:y"]);
    expect(await names(image, "/e")).toEqual([]);
    expect(await codeOf(() => stat(image, "/d/x"))).toBe("not_found");
    expect(await codeOf(() => stat(image, "/e/old"))).toBe("not_found");
  });

  test("an opaque directory hides the contents below, but not above", async () => {
    const image = await tree([dir("d"), file("d/low")], [dir("d", true), file("d/mid")], [dir("d"), file("d/top")]);
    expect(await names(image, "/d")).toEqual(["f:mid", "f:top"]);
    expect(await codeOf(() => stat(image, "/d/low"))).toBe("not_found");
  });

  test("the root always merges", async () => {
    const image = await tree([dir(""), file("low")], [dir("", true), file("top")]);
    expect(await names(image, "/")).toEqual(["f:low", "f:top"]);
  });

  test("a file hides a directory of lower layers, and a directory above it starts empty", async () => {
    const image = await tree([dir("d"), file("d/low")], [file("d")], [dir("d"), file("d/top")]);
    expect(await names(image, "/d")).toEqual(["f:top"]);
    const two = await tree([dir("d"), file("d/low")], [file("d")]);
    expect((await stat(two, "/d")).type).toBe("f");
    expect(await codeOf(() => stat(two, "/d/low"))).toBe("not_found");
    expect(await codeOf(() => two.list(path("/d")))).toBe("invalid_path");
  });

  test("a whiteout in the lowest layer shows no entry", async () => {
    const image = await tree([whiteout("x"), file("y")]);
    expect(await names(image, "/")).toEqual(["f:y"]);
    expect(await codeOf(() => stat(image, "/x"))).toBe("not_found");
  });

  test("a directory takes its attributes from the topmost layer", async () => {
    const image = await tree([{ path: "d", type: "d", mode: 0o700 }], [{ path: "d", type: "d", mode: 0o1777, uid: 5 }]);
    expect(await stat(image, "/d")).toMatchObject({ mode: 0o1777, uid: 5, path: "/d", name: "d" });
    expect(await stat(image, "/")).toMatchObject({ type: "d", path: "/", name: "" });
  });

  test("a large directory is listed in order across pages and layers", async () => {
    const all = Array.from({ length: 1500 }, (_, n) => `f${String(n).padStart(5, "0")}`);
    const low = all.filter((_, n) => n % 3 !== 1).map((name) => file(name));
    const gone = all.filter((_, n) => n % 6 === 0).map((name) => whiteout(name));
    const top = all.filter((_, n) => n % 3 === 1).map((name) => file(name));
    const image = await tree(low, [...gone, ...top]);
    expect(await names(image, "/")).toEqual(all.filter((_, n) => n % 6 !== 0).map((name) => `f:${name}`));
  });
});

describe("symlinks", () => {
  test("stay inside the image, wherever they point", async () => {
    const image = await tree([
      dir("usr"),
      dir("usr/lib"),
      file("usr/lib/x", 0o600),
      link("lib", "usr/lib"),
      link("abs", "/usr/lib"),
      link("up", "../../../../usr/lib"),
      link("usr/back", "../lib/x"),
      link("dots", "./usr/./lib//"),
      link("chain", "abs"),
      link("root", "/"),
      link("dangling", "nothing/here"),
      link("through", "usr/lib/x/y"),
      link("slash", "usr/lib/x/"),
      link("dot", "usr/lib/x/."),
      link("slashed", "slash"),
      link("lib-slash", "lib/"),
      link("lib-dot", "abs/."),
      link("here", "."),
    ]);
    for (const at of [
      "/lib/x",
      "/abs/x",
      "/up/x",
      "/usr/back",
      "/dots/x",
      "/chain/x",
      "/root/lib/x",
      "/root/root/up/x",
      "/lib-slash/x",
      "/lib-dot/x",
      "/here/lib/x",
    ]) {
      expect(await stat(image, at)).toMatchObject({ path: "/usr/lib/x", mode: 0o600 });
    }
    expect(await stat(image, "/lib", false)).toMatchObject({ type: "l", path: "/lib", target: "usr/lib" });
    expect(await stat(image, "/root/abs", false)).toMatchObject({ type: "l", path: "/abs" });
    expect((await stat(image, "/lib")).path).toBe(path("/usr/lib"));
    expect((await stat(image, "/root")).path).toBe(path("/"));
    expect(await names(image, "/chain")).toEqual(["f:x"]);
    for (const at of ["/dangling", "/through", "/usr/lib/x/y", "/slash", "/dot", "/slashed"])
      expect(await codeOf(() => stat(image, at))).toBe("not_found");
  });

  test("a loop is an invalid path; 40 links are not", async () => {
    const chain = Array.from({ length: 45 }, (_, n) => link(`l${n}`, `l${n + 1}`));
    const image = await tree([
      ...chain,
      dir("l45"),
      link("self", "self"),
      link("a", "b/x"),
      link("b", "a"),
      link("grow", "grow/grow"),
    ]);
    for (const at of ["/self", "/a", "/b", "/grow", "/l4"]) {
      expect(await codeOf(() => stat(image, at))).toBe("invalid_path");
    }
    expect((await stat(image, "/l5")).path).toBe(path("/l45"));
    expect((await stat(image, "/self", false)).type).toBe("l");
  });

  test("resolve in the merge: a link of one layer into a directory of another", async () => {
    const image = await tree(
      [dir("data"), file("data/one")],
      [link("current", "data")],
      [dir("data"), file("data/two")],
    );
    expect(await names(image, "/current")).toEqual(["f:one", "f:two"]);
  });
});

describe("any stack of layers", () => {
  /** The record of one layer for one path. */
  type Mark = "f" | "d" | "o" | "w";
  const NAMES = ["a", "b", "c"];
  const PATHS = NAMES.flatMap((x) => [
    x,
    ...NAMES.flatMap((y) => [`${x}/${y}`, ...NAMES.map((z) => `${x}/${y}/${z}`)]),
  ]);
  const layerMarks = fc.array(fc.tuple(fc.constantFrom(...PATHS), fc.constantFrom<Mark>("f", "d", "d", "o", "w")), {
    maxLength: 14,
  });

  /** Marks whose parents are directories of the same layer, as in a real layer. */
  function toLayer(marks: readonly (readonly [string, Mark])[]): Map<string, Mark> {
    const markOf = new Map(marks);
    const layer = new Map<string, Mark>();
    for (const at of PATHS) {
      const mark = markOf.get(at);
      const parent = at.slice(0, Math.max(0, at.lastIndexOf("/")));
      const parentMark = layer.get(parent);
      if (mark !== undefined && (parent === "" || parentMark === "d" || parentMark === "o")) layer.set(at, mark);
    }
    return layer;
  }

  /** Applies one layer after the other to a plain map, as the extraction of archives would. */
  function naive(layers: readonly Map<string, Mark>[]): Map<string, string> {
    const merged = new Map<string, string>();
    const removeBelow = (at: string) => {
      for (const key of [...merged.keys()]) if (key.startsWith(`${at}/`)) merged.delete(key);
    };
    for (const [number, layer] of layers.entries()) {
      for (const [at, mark] of layer) {
        if (mark !== "d" || !merged.get(at)?.startsWith("d")) removeBelow(at);
        if (mark === "w") merged.delete(at);
        else merged.set(at, `${mark === "f" ? "f" : "d"}${number}`);
      }
    }
    return merged;
  }

  test("gives the same tree as applying layer after layer", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(layerMarks, { minLength: 1, maxLength: 5 }), async (stack) => {
        const layers = stack.map(toLayer);
        const files = await filesOf(
          layers.map((layer, number) =>
            [...layer].map(([at, mark]): TestRecord => {
              const type = mark === "o" ? "d" : mark;
              return { path: at, type, opaque: mark === "o", uid: number };
            }),
          ),
        );
        // Both from memory and from disk, as large indexes are read.
        for (const cache of [open, new OpenLayers(2, 0)])
          await expectMerged(new ImageTree(files, cache), naive(layers));
      }),
      { numRuns: 80, seed: 20_261_120 },
    );
  });

  async function expectMerged(image: ImageTree, expected: ReadonlyMap<string, string>): Promise<void> {
    for (const at of PATHS) {
      const want = expected.get(at);
      if (want === undefined) expect(await codeOf(() => stat(image, `/${at}`))).toBe("not_found");
      else expect(`${(await stat(image, `/${at}`)).type}${(await stat(image, `/${at}`)).uid}`).toBe(want);
    }
    const directories = ["", ...[...expected].filter(([, value]) => value.startsWith("d")).map(([key]) => key)];
    for (const at of directories) {
      const prefix = at === "" ? "" : `${at}/`;
      const children = [...expected.keys()].filter(
        (key) => key.startsWith(prefix) && !key.slice(prefix.length).includes("/"),
      );
      const want = children.map((key) => `${expected.get(key)?.[0]}:${key.slice(prefix.length)}`);
      expect(await names(image, `/${at}`)).toEqual(want.toSorted((a, b) => (a.slice(2) < b.slice(2) ? -1 : 1)));
    }
  }
});
