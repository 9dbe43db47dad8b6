import { afterAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import type { ApiError } from "../../../src/domain/errors.ts";
import type { GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { ImageTree } from "../../../src/storage/tree/image-tree.ts";
import { type LayerFiles, OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import type { TestRecord } from "../../support/images/index-stream.ts";
import { filesOpenBelow, makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("image-read");
const open = new OpenLayers(8);
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const path = (text: string) => text as GuestPath;
const dir = (name: string, opaque = false): TestRecord => ({ path: name, type: "d", opaque, mode: 0o755 });
const file = (name: string, mode = 0o644): TestRecord => ({ path: name, type: "f", mode });
const link = (name: string, target: string): TestRecord => ({ path: name, type: "l", target });

async function tree(...layers: TestRecord[][]): Promise<ImageTree> {
  const files: LayerFiles[] = [];
  for (const records of layers) files.push(await makeLayer(directory, records));
  return new ImageTree(files, open);
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

  /** Copies the chunks, which share a buffer. */
  async function collect(stream: AsyncIterable<Uint8Array>): Promise<Buffer> {
    const chunks: Uint8Array[] = [];
    for await (const chunk of stream) chunks.push(Buffer.from(chunk));
    return Buffer.concat(chunks);
  }

  test("gives the bytes of extents and zeros for holes, whole and in ranges", async () => {
    const many = Array.from({ length: 400 }, (_, n) => [n % 3 ? block * (n % 5) : 0, block * (1 + (n % 4))] as const);
    const { content, disk, record } = scattered([...many, [5000, 777]], 600_000);
    const image = new ImageTree([await makeLayer(directory, [record], disk)], open);
    const entry = await stat(image, "/f");
    expect((await collect(image.chunks(entry))).equals(content)).toBe(true);
    expect((await image.read(entry)).equals(content)).toBe(true);
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
      const expected = content.subarray(start, end);
      expect((await collect(image.chunks(entry, { start, end }))).equals(expected)).toBe(true);
      expect((await image.read(entry, { start, end })).equals(expected)).toBe(true);
    }
    expect(() => image.chunks(entry, { start: 0, end: size + 1 })).toThrow(RangeError);
    expect(() => image.chunks(entry, { start: 5, end: 4 })).toThrow(RangeError);
  });

  test("a huge hole costs nothing to open, and is read in chunks of constant size", async () => {
    const layer = await makeLayer(directory, [{ path: "f", type: "f", size: 2n ** 53n - 1n }]);
    const image = new ImageTree([layer], open);
    const entry = await stat(image, "/f");
    const chunks = image.chunks(entry, { start: 2 ** 52, end: entry.size });
    const { value } = await chunks.next();
    expect(value?.byteLength).toBe(262_144);
    expect(value?.every((byte) => byte === 0)).toBe(true);
    await chunks.return();
  });

  test("takes the content from the layer that shows the file", async () => {
    const low = scattered([[0, 100]], 0);
    const top = scattered([[0, 50]], 0);
    const layers = [
      await makeLayer(directory, [low.record], low.disk),
      await makeLayer(directory, [top.record], top.disk),
    ];
    const image = new ImageTree(layers, open);
    expect((await collect(image.chunks(await stat(image, "/f")))).equals(top.content)).toBe(true);
  });

  test("refuses anything but regular files", async () => {
    const image = await tree([dir("d"), link("l", "nowhere"), { path: "c", type: "c", rdev: [1, 3] }]);
    for (const [at, follow] of [
      ["/d", true],
      ["/l", false],
      ["/c", true],
    ] as const) {
      const entry = await stat(image, at, follow);
      expect(await codeOf(() => image.chunks(entry))).toBe("invalid_path");
    }
  });

  test("fails when the disk is shorter than the index says", async () => {
    const { disk, record } = scattered([[0, 4096]], 0);
    const layer = await makeLayer(directory, [record], disk);
    truncateSync(layer.disk, 1000);
    const image = new ImageTree([layer], new OpenLayers(2));
    const failure = await collect(image.chunks(await stat(image, "/f"))).then(
      () => null,
      (error: unknown) => error,
    );
    expect(String(failure)).toContain("shorter than its index");
  });

  test("cancelled, failed, finished and abandoned reads close their files", async () => {
    const { disk, record } = scattered([[0, 600_000]], 0);
    const own = await makeLayer(directory, [record], disk);
    const cache = new OpenLayers(0);
    const image = new ImageTree([own], cache);
    const openFiles = () => filesOpenBelow(own.disk).length;
    const entry = await stat(image, "/f");
    expect(openFiles()).toBe(0);
    image.chunks(entry);
    expect(openFiles()).toBe(0);
    const chunks = image.chunks(entry);
    await chunks.next();
    expect(openFiles()).toBe(1);
    const pending = chunks.next();
    await chunks.return();
    await pending;
    expect(openFiles()).toBe(0);
    await collect(image.chunks(entry));
    expect(openFiles()).toBe(0);
  });

  test("a layer that is forgotten and removed is read to the end", async () => {
    const { content, disk, record } = scattered([[0, 1_000_000]], 0);
    const layer = await makeLayer(directory, [record], disk);
    const cache = new OpenLayers(4);
    const image = new ImageTree([layer], cache);
    const chunks = image.chunks(await stat(image, "/f"));
    const first = Buffer.from((await chunks.next()).value ?? []);
    cache.forget(layer.index);
    rmSync(layer.disk);
    rmSync(layer.index);
    const rest = await collect(chunks);
    expect(Buffer.concat([first, rest]).equals(content)).toBe(true);
    expect(await codeOf(() => stat(image, "/f"))).toBe("ENOENT");
  });
});

describe("open layers", () => {
  test("keep those used last, and close none that is being read", async () => {
    const layers: LayerFiles[] = [];
    for (let n = 0; n < 5; n++) layers.push(await makeLayer(directory, [file(`f${n}`)]));
    const cache = new OpenLayers(2);
    const held = layers.map((layer) => cache.acquire(layer));
    const openDisks = () => layers.flatMap(({ disk }) => filesOpenBelow(disk)).length;
    expect(openDisks()).toBe(5);
    for (const [n, lease] of held.entries()) expect(lease.index.root().offsets.childCount + n).toBe(1 + n);
    for (const lease of held) {
      lease[Symbol.dispose]();
      lease[Symbol.dispose]();
    }
    expect(openDisks()).toBe(2);
    expect(() => held[0]?.index.root()).toThrow("closed");
    expect(() => held[0]?.share()).toThrow("disposed");
    using again = cache.acquire(layers[4] as LayerFiles);
    expect(again.index).toBe((held[4] as (typeof held)[number]).index);
  });

  test("read small indexes without a descriptor, in bounded memory", async () => {
    const layers: LayerFiles[] = [];
    for (let n = 0; n < 40; n++) layers.push(await makeLayer(directory, [file(`f${n}`), file("every")]));
    const sizeBytes = statSync(layers[0]?.index as string).size;
    const cache = new OpenLayers(4, 30 * sizeBytes);
    for (let round = 0; round < 2; round++) {
      const image = new ImageTree(layers, cache);
      for (let n = 0; n < 40; n++) expect((await image.stat(`/f${n}` as GuestPath, { follow: true })).type).toBe("f");
      expect((await Array.fromAsync(await image.list("/" as GuestPath))).length).toBe(41);
    }
    expect(layers.flatMap(({ index }) => filesOpenBelow(index))).toEqual([]);
    for (const layer of layers) rmSync(layer.index);
    const inMemory = () =>
      layers.filter((layer) => {
        try {
          return cache.readIndex(layer, (index) => index.root()).type === "d";
        } catch (error) {
          // ENOENT: it is to be read from its file.
          if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
          throw error;
        }
      }).length;
    expect(inMemory()).toBeGreaterThan(20);
    expect(inMemory()).toBeLessThanOrEqual(30);
    for (const layer of layers) cache.forget(layer.index);
    expect(inMemory()).toBe(0);
  });

  test("read the needed parts of large indexes", async () => {
    const records = Array.from({ length: 300 }, (_, n) => file(`f${n}`));
    const layer = await makeLayer(directory, records);
    const cache = new OpenLayers(1);
    expect((await Array.fromAsync(await new ImageTree([layer], cache).list("/" as GuestPath))).length).toBe(300);
    expect(filesOpenBelow(layer.index)).toEqual([layer.index]);
    cache.forget(layer.index);
    expect(filesOpenBelow(layer.index)).toEqual([]);
  });

  test("leave no index open when the disk is missing", async () => {
    const layer = await makeLayer(directory, [file("f")]);
    rmSync(layer.disk);
    const cache = new OpenLayers(2);
    expect(() => cache.acquire(layer)).toThrow("ENOENT");
    expect(filesOpenBelow(layer.index)).toEqual([]);
  });

  test("refuse a file that is not an index", async () => {
    const layer = await makeLayer(directory, [file("f")]);
    writeFileSync(layer.index, "nonsense");
    expect(() => new OpenLayers(2).acquire(layer)).toThrow("not a layer index");
  });
});
