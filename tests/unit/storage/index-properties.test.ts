import { afterAll, describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { type ByteString, byteStringToBytes } from "../../../src/domain/tree/guest-path.ts";
import { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { LayerIndexError } from "../../../src/storage/index/layer-index-format.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { childrenAt, entryAt, headerOf } from "../../support/images/index-reading.ts";
import { encodeStream, pieces, type TestExtent, type TestRecord } from "../../support/images/index-stream.ts";
import { testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("index-properties");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const DISK_BYTES = 16 * 1_048_576;
let fileNumber = 0;
const newPath = () => join(directory, `${fileNumber++}.index`);

/** Names of any bytes but "/" and NUL. */
const name = fc
  .uint8Array({ minLength: 1, maxLength: 12 })
  .map((bytes) => Buffer.from(bytes.map((byte) => (byte === 0 || byte === 0x2f ? 0x61 : byte))).toString("latin1"))
  .filter((text) => text !== "." && text !== "..");

interface Leaf {
  readonly kind: "leaf";
  readonly type: string;
  readonly mode: number;
  readonly mtime: bigint;
  /** lengths in blocks of holes and of extents, in turn */
  readonly runs: readonly (readonly [hole: number, blocks: number])[];
}
interface Directory {
  readonly kind: "directory";
  readonly children: ReadonlyMap<string, Tree>;
}
type Tree = Leaf | Directory;

const leaf = fc.record({
  kind: fc.constant("leaf" as const),
  type: fc.constantFrom("f", "f", "f", "l", "p", "w", "c"),
  mode: fc.integer({ min: 0, max: 0o7777 }),
  mtime: fc.bigInt({ min: -8_640_000_000_000n, max: 8_640_000_000_000n }),
  runs: fc.array(fc.tuple(fc.integer({ min: 0, max: 3 }), fc.integer({ min: 1, max: 4 })), { maxLength: 5 }),
});
const { tree } = fc.letrec<{ tree: Tree; directory: Directory }>((tie) => ({
  tree: fc.oneof({ depthSize: "small" }, leaf, tie("directory")),
  directory: fc.record({
    kind: fc.constant("directory" as const),
    children: fc
      .array(fc.tuple(name, tie("tree")), { maxLength: 12 })
      .map((children) => new Map(children as [string, Tree][])),
  }),
}));
const rootTree = fc.array(fc.tuple(name, tree), { maxLength: 25 }).map((children) => new Map(children));

/** Places the tree's files on a disk, block after block, and lists its records: a directory before its children. */
function recordsOf(root: ReadonlyMap<string, Tree>): TestRecord[] {
  const records: TestRecord[] = [];
  let nextBlock = 0;
  const visit = (prefix: string, children: ReadonlyMap<string, Tree>): void => {
    for (const [childName, child] of children) {
      const path = prefix + childName;
      if (child.kind === "directory") {
        records.push({ path, type: "d" });
        visit(`${path}/`, child.children);
        continue;
      }
      const extents: TestExtent[] = [];
      let logical = 0;
      for (const [hole, blocks] of child.type === "f" ? child.runs : []) {
        logical += hole * 1024;
        extents.push([logical, nextBlock * 1024, blocks * 1024]);
        logical += blocks * 1024;
        nextBlock += blocks;
      }
      records.push({
        path,
        type: child.type,
        mode: child.mode,
        mtimeSeconds: child.mtime,
        size: BigInt(logical),
        extents,
        ...(child.type === "l" ? { target: "somewhere" } : {}),
      });
    }
  };
  visit("", root);
  return records;
}

function byBytes(a: string, b: string): number {
  return Buffer.compare(byteStringToBytes(a as ByteString), byteStringToBytes(b as ByteString));
}

test("any tree is read back, path by path, listing by listing and extent by extent", async () => {
  await fc.assert(
    fc.asyncProperty(rootTree, fc.integer({ min: 1, max: 5000 }), async (root, pieceBytes) => {
      const records = recordsOf(root);
      const path = newPath();
      const stream = pieces(encodeStream(records), pieceBytes);
      const { entryCount } = await writeLayerIndex({ stream, path, diskBytes: DISK_BYTES });
      expect(entryCount).toBe(records.length);
      const file = LayerIndex.open(path);
      const loaded = LayerIndex.load(path, Number.MAX_SAFE_INTEGER);
      if (loaded === null) throw new Error("the index was not loaded");
      for (const index of [file, loaded]) expectTree(index, root, records);
      // A second request and the parts of a long listing give the same from memory.
      for (const { path: at } of [{ path: "" }, ...records]) {
        const place = `/${at}`;
        expect(entryAt(loaded, place)).toEqual(entryAt(file, place));
        const all = childrenAt(file, place, null, 1000);
        for (const after of [null, ...all.map((entry) => entry.name)]) {
          expect(childrenAt(loaded, place, after, 2)).toEqual(childrenAt(file, place, after, 2));
        }
        const entry = entryAt(file, place);
        if (entry !== null) expect(loaded.xattrs(entry)).toEqual(file.xattrs(entry));
      }
      expect(LayerIndex.load(path, loaded.sizeBytes - 1)).toBeNull();
      file.close();
    }),
    { numRuns: 60, seed: 20_261_120 },
  );
});

function expectTree(index: LayerIndex, root: ReadonlyMap<string, Tree>, records: readonly TestRecord[]): void {
  for (const record of records) {
    const entry = entryAt(index, `/${record.path}`);
    if (entry === null) throw new Error(`missing ${JSON.stringify(record.path)}`);
    expect([entry.type, entry.mode, BigInt(entry.mtimeSeconds), BigInt(entry.size)]).toEqual([
      record.type as "f",
      record.mode ?? 0o644,
      record.mtimeSeconds ?? 0n,
      record.size ?? 0n,
    ]);
    const extents = index.extents(entry, 0, 1000).map((e): TestExtent => [e.logical, e.physical, e.length]);
    expect(extents).toEqual([...(record.extents ?? [])]);
  }
  const check = (prefix: string, children: ReadonlyMap<string, Tree>): void => {
    const listed = childrenAt(index, prefix, null, 1000).map((entry) => entry.name as string);
    expect(listed).toEqual([...children.keys()].toSorted(byBytes));
    for (const [childName, child] of children) {
      expect(entryAt(index, `${prefix}/${childName}?`)).toBeNull();
      if (child.kind === "directory") check(`${prefix}/${childName}`, child.children);
    }
  };
  if (![...root.keys()].some((key) => root.has(`${key}?`))) check("", root);
}

/** A small generator with a seed, so that a failure can be repeated. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 0x1_0000_0000;
  };
}

function mutate(stream: Buffer, next: () => number): Buffer {
  const bytes = Buffer.from(stream);
  const position = () => Math.floor(next() * bytes.length);
  for (let left = 1 + Math.floor(next() * 4); left > 0; left--) {
    const at = position();
    const way = Math.floor(next() * 5);
    if (way === 0) bytes[at] = Math.floor(next() * 256);
    else if (way === 1) bytes[at] = (bytes[at] as number) ^ (1 << Math.floor(next() * 8));
    else if (way === 2) bytes.fill(0xff, at, Math.min(bytes.length, at + 4));
    else if (way === 3) bytes.copyWithin(at, position(), position());
    else bytes.fill(0, at, Math.min(bytes.length, at + 8));
  }
  return next() < 0.1 ? bytes.subarray(0, position()) : bytes;
}

describe("mutated streams", () => {
  const seedRecords: TestRecord[] = [
    { path: "bin", type: "d", opaque: true },
    {
      path: "bin/sh",
      type: "f",
      size: 9000n,
      nlink: 2,
      inode: 9n,
      extents: [
        [0, 0, 4096],
        [8192, 8192, 100],
      ],
    },
    {
      path: "bin/ash",
      type: "f",
      size: 9000n,
      nlink: 2,
      inode: 9n,
      extents: [
        [0, 0, 4096],
        [8192, 8192, 100],
      ],
    },
    { path: "big", type: "f", size: 1_000_000n, extents: [[0, 16_384, 4096]] },
    { path: "", type: "x", extents: [[4096, 24_576, 4096]] },
    { path: "etc", type: "d", xattrs: [["user.x", "value"]] },
    { path: "etc/link", type: "l", target: "../bin/sh" },
    { path: "gone", type: "w" },
  ];
  const stream = encodeStream(seedRecords);

  test("are refused with a LayerIndexError, or give an index that can be walked", async () => {
    const counts = { refused: 0, written: 0 };
    for (let seed = 1; seed <= 1500; seed++) {
      const next = random(seed);
      const path = newPath();
      const chunks = pieces(mutate(stream, next), 1 + Math.floor(next() * 300));
      try {
        await writeLayerIndex({ stream: chunks, path, diskBytes: DISK_BYTES });
        counts.written++;
      } catch (error) {
        if (!(error instanceof LayerIndexError)) throw new Error(`seed ${seed}: ${error}`, { cause: error });
        counts.refused++;
        continue;
      }
      walk(path, seed);
    }
    expect(counts.refused).toBeGreaterThan(500);
    expect(counts.written).toBeGreaterThan(50);
  }, 60_000);
});

/** Every entry and extent of an accepted index must be usable and inside the disk. */
function walk(path: string, seed: number): void {
  const index = LayerIndex.open(path);
  // The root is in the table, too.
  let left = headerOf(path).tableCount - 1;
  const visit = (entry: ReturnType<LayerIndex["root"]>): void => {
    index.xattrs(entry);
    for (const { logical, physical, length } of index.extents(entry, 0, 1000)) {
      const isInside = logical + length <= entry.size && physical + length <= DISK_BYTES && length > 0;
      if (!isInside) throw new Error(`seed ${seed}: extent outside`);
    }
    for (const child of index.children(entry, null, 1000)) {
      left--;
      visit(child);
    }
  };
  visit(index.root());
  index.close();
  if (left !== 0) throw new Error(`seed ${seed}: ${left} entries are not reachable`);
}
