import { afterAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { readdirSync, readlinkSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import fc from "fast-check";
import type { ApiError } from "../../../src/domain/errors.ts";
import type { GuestPath } from "../../../src/domain/guest-path.ts";
import { ImageTree } from "../../../src/storage/image-tree.ts";
import { type LayerFiles, OpenLayers } from "../../../src/storage/open-layers.ts";
import type { TestRecord } from "../../support/index-stream.ts";
import { makeLayer, testDirectory } from "../../support/layer-files.ts";

const directory = testDirectory("image-tree");
const open = new OpenLayers(8);
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const path = (text: string) => text as GuestPath;
const dir = (name: string, opaque = false): TestRecord => ({ path: name, type: "d", opaque, mode: 0o755 });
const file = (name: string, mode = 0o644): TestRecord => ({ path: name, type: "f", mode });
const link = (name: string, target: string): TestRecord => ({ path: name, type: "l", target });
const whiteout = (name: string): TestRecord => ({ path: name, type: "w" });

async function tree(...layers: TestRecord[][]): Promise<ImageTree> {
  const files: LayerFiles[] = [];
  for (const records of layers) files.push(await makeLayer(directory, records));
  return new ImageTree(files, open);
}

async function names(image: ImageTree, at: string): Promise<string[]> {
  const listed: string[] = [];
  for await (const entry of image.list(path(at))) listed.push(`${entry.type}:${entry.name}`);
  return listed;
}

function codeOf(action: () => unknown): string {
  try {
    action();
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
    expect(stat(image, "/etc/a").mode).toBe(0o644);
    expect(stat(image, "/etc/b").mode).toBe(0o777);
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
    expect(codeOf(() => stat(image, "/d/x"))).toBe("not_found");
    expect(codeOf(() => stat(image, "/e/old"))).toBe("not_found");
  });

  test("an opaque directory hides the contents below, but not above", async () => {
    const image = await tree([dir("d"), file("d/low")], [dir("d", true), file("d/mid")], [dir("d"), file("d/top")]);
    expect(await names(image, "/d")).toEqual(["f:mid", "f:top"]);
    expect(codeOf(() => stat(image, "/d/low"))).toBe("not_found");
  });

  test("the root always merges", async () => {
    const image = await tree([dir(""), file("low")], [dir("", true), file("top")]);
    expect(await names(image, "/")).toEqual(["f:low", "f:top"]);
  });

  test("a file hides a directory of lower layers, and a directory on it starts afresh", async () => {
    const image = await tree([dir("d"), file("d/low")], [file("d")], [dir("d"), file("d/top")]);
    expect(await names(image, "/d")).toEqual(["f:top"]);
    const two = await tree([dir("d"), file("d/low")], [file("d")]);
    expect(stat(two, "/d").type).toBe("f");
    expect(codeOf(() => stat(two, "/d/low"))).toBe("not_found");
    expect(codeOf(() => two.list(path("/d")))).toBe("invalid_path");
  });

  test("a whiteout of the lowest layer is no entry", async () => {
    const image = await tree([whiteout("x"), file("y")]);
    expect(await names(image, "/")).toEqual(["f:y"]);
    expect(codeOf(() => stat(image, "/x"))).toBe("not_found");
  });

  test("a directory takes its attributes from the topmost layer", async () => {
    const image = await tree([{ path: "d", type: "d", mode: 0o700 }], [{ path: "d", type: "d", mode: 0o1777, uid: 5 }]);
    expect(stat(image, "/d")).toMatchObject({ mode: 0o1777, uid: 5, path: "/d", name: "d" });
    expect(stat(image, "/")).toMatchObject({ type: "d", path: "/", name: "" });
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
    ]) {
      expect(stat(image, at)).toMatchObject({ path: "/usr/lib/x", mode: 0o600 });
    }
    expect(stat(image, "/lib", false)).toMatchObject({ type: "l", path: "/lib", target: "usr/lib" });
    expect(stat(image, "/root/abs", false)).toMatchObject({ type: "l", path: "/abs" });
    expect(stat(image, "/lib").path).toBe(path("/usr/lib"));
    expect(stat(image, "/root").path).toBe(path("/"));
    expect(await names(image, "/chain")).toEqual(["f:x"]);
    for (const at of ["/dangling", "/through", "/usr/lib/x/y"]) expect(codeOf(() => stat(image, at))).toBe("not_found");
  });

  test("a loop is an invalid path, and 40 links are none", async () => {
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
      expect(codeOf(() => stat(image, at))).toBe("invalid_path");
    }
    expect(stat(image, "/l5").path).toBe(path("/l45"));
    expect(stat(image, "/self", false).type).toBe("l");
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

describe("reading", () => {
  const block = 1024;

  /** A file of `runs` with holes before each, its bytes, and the disk that holds them in a mixed order. */
  function scattered(runs: readonly (readonly [hole: number, length: number])[], tailHole: number) {
    const parts: Buffer[] = [];
    const extents: [number, number, number][] = [];
    let logical = 0;
    const disk = Buffer.alloc(4 * 1_048_576, 0xee);
    let physical = disk.length;
    for (const [hole, length] of runs) {
      parts.push(Buffer.alloc(hole));
      logical += hole;
      physical -= Math.ceil(length / block) * block;
      const data = randomBytes(length);
      data.copy(disk, physical);
      parts.push(data);
      extents.push([logical, physical, length]);
      logical += length;
    }
    parts.push(Buffer.alloc(tailHole));
    const content = Buffer.concat(parts);
    const record: TestRecord = { path: "f", type: "f", size: BigInt(content.length), extents };
    return { content, disk, record };
  }

  async function collect(stream: ReadableStream<Uint8Array>): Promise<Buffer> {
    const chunks: Uint8Array[] = [];
    for await (const chunk of stream) chunks.push(chunk);
    return Buffer.concat(chunks);
  }

  test("gives the bytes of extents and zeros for holes, whole and in ranges", async () => {
    const many = Array.from({ length: 400 }, (_, n) => [n % 3 ? block * (n % 5) : 0, block * (1 + (n % 4))] as const);
    const { content, disk, record } = scattered([...many, [5000, 777]], 600_000);
    const image = new ImageTree([await makeLayer(directory, [record], disk)], open);
    const entry = stat(image, "/f");
    expect((await collect(image.read(entry))).equals(content)).toBe(true);
    const size = content.length;
    const ranges = [
      [0, 0],
      [0, 1],
      [size - 1, size],
      [size, size],
      [1023, 1025],
      [300_000, 900_000],
      [size - 700_000, size],
    ];
    for (const [start, end] of ranges as [number, number][]) {
      const got = await collect(image.read(entry, { start, end }));
      expect(got.equals(content.subarray(start, end))).toBe(true);
    }
    expect(() => image.read(entry, { start: 0, end: size + 1 })).toThrow(RangeError);
    expect(() => image.read(entry, { start: 5, end: 4 })).toThrow(RangeError);
  });

  test("a huge hole costs nothing to open and is read in constant chunks", async () => {
    const layer = await makeLayer(directory, [{ path: "f", type: "f", size: 2n ** 53n - 1n }]);
    const image = new ImageTree([layer], open);
    const entry = stat(image, "/f");
    const reader = image.read(entry, { start: 2 ** 52, end: entry.size }).getReader();
    const { value } = await reader.read();
    expect(value?.byteLength).toBe(262_144);
    expect(value?.every((byte) => byte === 0)).toBe(true);
    await reader.cancel();
  });

  test("takes the content of the layer that shows the file", async () => {
    const low = scattered([[0, 100]], 0);
    const top = scattered([[0, 50]], 0);
    const layers = [
      await makeLayer(directory, [low.record], low.disk),
      await makeLayer(directory, [top.record], top.disk),
    ];
    const image = new ImageTree(layers, open);
    expect((await collect(image.read(stat(image, "/f")))).equals(top.content)).toBe(true);
  });

  test("refuses what is no regular file", async () => {
    const image = await tree([dir("d"), link("l", "nowhere"), { path: "c", type: "c", rdev: [1, 3] }]);
    for (const [at, follow] of [
      ["/d", true],
      ["/l", false],
      ["/c", true],
    ] as const) {
      const entry = stat(image, at, follow);
      expect(codeOf(() => image.read(entry))).toBe("invalid_path");
    }
  });

  test("fails when the disk is shorter than the index says", async () => {
    const { disk, record } = scattered([[0, 4096]], 0);
    const layer = await makeLayer(directory, [record], disk);
    truncateSync(layer.disk, 1000);
    const image = new ImageTree([layer], new OpenLayers(2));
    const failure = await collect(image.read(stat(image, "/f"))).then(
      () => null,
      (error: unknown) => error,
    );
    expect(String(failure)).toContain("shorter than its index");
  });

  test("cancelled, failed, finished and abandoned streams close their files", async () => {
    const { disk, record } = scattered([[0, 600_000]], 0);
    const own = await makeLayer(directory, [record], disk);
    const cache = new OpenLayers(0);
    const image = new ImageTree([own], cache);
    const openFiles = () =>
      readdirSync("/proc/self/fd").filter((fd) => {
        try {
          return readlinkSync(`/proc/self/fd/${fd}`).startsWith(own.disk);
        } catch (error) {
          // ENOENT: the descriptor of the listing itself.
          if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
          throw error;
        }
      }).length;
    const entry = stat(image, "/f");
    expect(openFiles()).toBe(0);
    image.read(entry);
    expect(openFiles()).toBe(0);
    const reader = image.read(entry).getReader();
    await reader.read();
    expect(openFiles()).toBe(1);
    const pending = reader.read();
    await reader.cancel();
    await pending;
    await Bun.sleep(20);
    expect(openFiles()).toBe(0);
    await collect(image.read(entry));
    expect(openFiles()).toBe(0);
  });

  test("a layer that is forgotten and removed is read to the end", async () => {
    const { content, disk, record } = scattered([[0, 1_000_000]], 0);
    const layer = await makeLayer(directory, [record], disk);
    const cache = new OpenLayers(4);
    const image = new ImageTree([layer], cache);
    const stream = image.read(stat(image, "/f"));
    const reader = stream.getReader();
    const first = await reader.read();
    cache.forget(layer.index);
    rmSync(layer.disk);
    rmSync(layer.index);
    reader.releaseLock();
    const rest = await collect(stream);
    expect(Buffer.concat([first.value ?? Buffer.alloc(0), rest]).equals(content)).toBe(true);
    expect(codeOf(() => stat(image, "/f"))).toBe("ENOENT");
  });
});

describe("open layers", () => {
  test("keep the latest used and never close under a reader", async () => {
    const layers: LayerFiles[] = [];
    for (let n = 0; n < 5; n++) layers.push(await makeLayer(directory, [file(`f${n}`)]));
    const cache = new OpenLayers(2);
    const held = layers.map((layer) => cache.acquire(layer));
    expect(cache.count).toBe(5);
    for (const [n, lease] of held.entries()) expect(lease.index.root().place.childCount + n).toBe(1 + n);
    for (const lease of held) {
      lease[Symbol.dispose]();
      lease[Symbol.dispose]();
    }
    expect(cache.count).toBe(2);
    expect(() => held[0]?.index.root()).toThrow("closed");
    expect(() => held[0]?.share()).toThrow("disposed");
    using again = cache.acquire(layers[4] as LayerFiles);
    expect(again.index).toBe((held[4] as (typeof held)[number]).index);
  });

  test("a missing disk leaves no index open", async () => {
    const layer = await makeLayer(directory, [file("f")]);
    rmSync(layer.disk);
    const cache = new OpenLayers(2);
    expect(() => cache.acquire(layer)).toThrow("ENOENT");
    expect(cache.count).toBe(0);
  });

  test("a file that is no index is refused", async () => {
    const layer = await makeLayer(directory, [file("f")]);
    writeFileSync(layer.index, "nonsense");
    expect(() => new OpenLayers(2).acquire(layer)).toThrow("not a layer index");
  });
});

describe("any stack of layers", () => {
  /** What one layer says about one path. */
  type Mark = "f" | "d" | "o" | "w";
  const NAMES = ["a", "b", "c"];
  const PATHS = NAMES.flatMap((x) => [
    x,
    ...NAMES.flatMap((y) => [`${x}/${y}`, ...NAMES.map((z) => `${x}/${y}/${z}`)]),
  ]);
  const layerMarks = fc.array(fc.tuple(fc.constantFrom(...PATHS), fc.constantFrom<Mark>("f", "d", "d", "o", "w")), {
    maxLength: 14,
  });

  /** Only marks whose parents are directories of the same layer, as a real layer has them. */
  function toLayer(marks: readonly (readonly [string, Mark])[]): Map<string, Mark> {
    const wanted = new Map(marks);
    const layer = new Map<string, Mark>();
    for (const at of PATHS) {
      const mark = wanted.get(at);
      const parent = at.slice(0, Math.max(0, at.lastIndexOf("/")));
      const parentMark = layer.get(parent);
      if (mark !== undefined && (parent === "" || parentMark === "d" || parentMark === "o")) layer.set(at, mark);
    }
    return layer;
  }

  /** Applies one layer after the other to a plain map, the way a tar extraction would: another road to the same tree. */
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

  test("merges as a layer-by-layer replay does", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(layerMarks, { minLength: 1, maxLength: 5 }), async (stack) => {
        const layers = stack.map(toLayer);
        const image = await tree(
          ...layers.map((layer, number) =>
            [...layer].map(([at, mark]): TestRecord => {
              const type = mark === "o" ? "d" : mark;
              return { path: at, type, opaque: mark === "o", uid: number };
            }),
          ),
        );
        const expected = naive(layers);
        for (const at of PATHS) {
          const want = expected.get(at);
          if (want === undefined) expect(codeOf(() => stat(image, `/${at}`))).toBe("not_found");
          else expect(`${stat(image, `/${at}`).type}${stat(image, `/${at}`).uid}`).toBe(want);
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
      }),
      { numRuns: 80, seed: 20_261_120 },
    );
  }, 30_000);
});
