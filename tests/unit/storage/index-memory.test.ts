import { afterAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import fc from "fast-check";
import { ByteBudget } from "../../../src/storage/byte-budget.ts";
import { BLOCK_BYTES, BlockMap } from "../../../src/storage/index/block-map.ts";
import { HashChains } from "../../../src/storage/index/columns.ts";
import { IndexMemory } from "../../../src/storage/index/index-memory.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { LinkedFiles } from "../../../src/storage/index/linked-files.ts";
import { throwing } from "../../support/failures.ts";
import { headerOf } from "../../support/images/index-reading.ts";
import { encodeStream, pieces, type TestRecord } from "../../support/images/index-stream.ts";
import { filesOpenBelow, testDirectory } from "../../support/images/layer-files.ts";

const MIB = 1_048_576;
/** Memory for the smallest index. */
const SMALL_BYTES = 3 * MIB;
const DISK_BYTES = 64 * MIB;

const directory = testDirectory("index-memory");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

let fileNumber = 0;
const newPath = () => join(directory, `${fileNumber++}.index`);
const files = (count: number): TestRecord[] =>
  Array.from({ length: count }, (_, at) => ({ path: `f${at}`, type: "f" }));

/** A stream that yields its bytes only when the test lets it. */
function dragging(bytes: Uint8Array) {
  const { promise: goesOn, resolve: goOn } = Promise.withResolvers<void>();
  const { promise: hasBegun, resolve: begin } = Promise.withResolvers<void>();
  async function* stream(): AsyncGenerator<Uint8Array> {
    yield bytes.subarray(0, 100);
    begin();
    await goesOn;
    yield bytes.subarray(100);
  }
  return { stream: stream(), goOn, hasBegun };
}

describe("the writing of an index", () => {
  test("gives the same file, whether there is memory at once, later, or only after others", async () => {
    const records: TestRecord[] = [
      { path: "d", type: "d" },
      {
        path: "d/large",
        type: "f",
        size: 40_960_000n,
        extents: Array.from({ length: 9000 }, (_, at) => [at * 4096, at * 4096, 1024]),
      },
      ...["a", "b"].map(
        (path): TestRecord => ({ path, type: "f", nlink: 2, inode: 9n, size: 1n, extents: [[0, 60 * MIB, 1]] }),
      ),
      ...files(100_000),
    ];
    const stream = encodeStream(records);
    const plain = newPath();
    await writeLayerIndex({ stream: pieces(stream), path: plain, diskBytes: DISK_BYTES });
    const expected = readFileSync(plain);
    for (const [sharedBytes, eachBytes] of [
      [0, 0],
      [64 * MIB, SMALL_BYTES],
      [SMALL_BYTES, 64 * MIB],
    ] as const) {
      const shared = new ByteBudget(sharedBytes);
      const memory = new IndexMemory(shared, eachBytes);
      const path = newPath();
      await writeLayerIndex({ stream: pieces(stream), path, diskBytes: DISK_BYTES, memory });
      expect(readFileSync(path).equals(expected)).toBe(true);
      expect(shared.take(sharedBytes)).toBe(true);
    }
  }, 60_000);

  test("is refused for the same reasons when it had to be spooled", async () => {
    const memory = new IndexMemory(new ByteBudget(0), 0);
    const write = (stream: Uint8Array) =>
      writeLayerIndex({ stream: pieces(stream, 7), path: newPath(), diskBytes: DISK_BYTES, memory });
    const whole = encodeStream(files(10));
    expect(await throwing(write(whole.subarray(0, -1)))).toThrow("cut short");
    expect(await throwing(write(encodeStream([...files(2), ...files(1)])))).toThrow("twice");
    expect(await write(whole)).toMatchObject({ entryCount: 10 });
  });

  test("does not wait for slow guests, and stays within the memory", async () => {
    const shared = new ByteBudget(2 * SMALL_BYTES);
    const memory = new IndexMemory(shared, SMALL_BYTES);
    const stream = encodeStream(files(1000));
    const dragged = Array.from({ length: 4 }, () => dragging(stream));
    const slow = dragged.map((each) =>
      writeLayerIndex({ stream: each.stream, path: newPath(), diskBytes: DISK_BYTES, memory }),
    );
    await Promise.all(dragged.map(({ hasBegun }) => hasBegun));
    expect(shared.take(1)).toBe(false);
    const written = await writeLayerIndex({ stream: pieces(stream), path: newPath(), diskBytes: DISK_BYTES, memory });
    expect(written.entryCount).toBe(1000);
    expect(shared.take(1)).toBe(false);
    for (const { goOn } of dragged) goOn();
    expect((await Promise.all(slow)).map(({ entryCount }) => entryCount)).toEqual([1000, 1000, 1000, 1000]);
    expect(shared.take(2 * SMALL_BYTES)).toBe(true);
  });

  test("leaves the queue when it is cancelled", async () => {
    const memory = new IndexMemory(new ByteBudget(0), 0);
    using first = memory.open();
    await first.takeLargeSlot(null);
    const leaving = new AbortController();
    const path = newPath();
    const stream = encodeStream(files(10));
    const write = (signal: AbortSignal | null) =>
      writeLayerIndex({
        stream: pieces(stream),
        path: signal === null ? newPath() : path,
        diskBytes: DISK_BYTES,
        memory,
        signal,
      });
    const left = write(leaving.signal);
    const next = write(null);
    // It is spooled just before it is queued.
    while (!existsSync(path) || statSync(path).size === 0) await setImmediate();
    leaving.abort(new Error("left"));
    expect(await throwing(left)).toThrow("left");
    first[Symbol.dispose]();
    expect((await next).entryCount).toBe(10);
    expect(filesOpenBelow(directory)).toEqual([]);
  });

  test("for 200,000 entries takes no more memory than it reserves", async () => {
    const path = newPath();
    const stream = encodeStream(
      Array.from({ length: 200_000 }, (_, at) => ({ path: `${at}`.padStart(100, "n"), type: "f" })),
    );
    // 25 bytes an entry in the table of names, 13 in the writer, 12 at the end, and what begins small.
    const bytes = 200_000 * (100 + 25 + 13 + 12) + 4 * MIB;
    const memory = new IndexMemory(new ByteBudget(bytes), bytes);
    // With the large slot taken, it cannot have more.
    using large = memory.open();
    await large.takeLargeSlot(null);
    await writeLayerIndex({ stream: pieces(stream), path, diskBytes: 0, memory });
    expect(headerOf(path).tableCount - 1).toBe(200_000);
  }, 60_000);
});

test("the large slot passes on in the order of the requests", async () => {
  const memory = new IndexMemory(new ByteBudget(0), 0);
  const accounts = [memory.open(), memory.open(), memory.open()];
  const order: number[] = [];
  const seated = accounts.map(async (account, number) => {
    await account.takeLargeSlot(null);
    order.push(number);
    expect(account.reserve(1e12)).toBe(true);
  });
  for (const [number, account] of accounts.entries()) {
    await seated[number];
    expect(order).toEqual([0, 1, 2].slice(0, number + 1));
    account[Symbol.dispose]();
  }
  using last = memory.open();
  await last.takeLargeSlot(null);
});

describe("tables that grow in small steps find their entries:", () => {
  test("entries by their hashes, also when many are equal", async () => {
    await fc.assert(
      fc.property(
        fc.array(fc.nat({ max: 0xffff_ffff }), { maxLength: 3000 }),
        fc.constantFrom(0xffff_ffff, 0xff, 0xff00_0000),
        (values, mask) => {
          const chains = new HashChains();
          const added = new Map<number, number>();
          for (const [index, value] of [...new Set(values)].entries()) {
            expect(chains.find((value & mask) >>> 0, (entry) => added.get(entry) === value)).toBeNull();
            added.set(index + 1, value);
            chains.add(index + 1, (value & mask) >>> 0);
          }
          for (const [entry, value] of added) {
            expect(chains.find((value & mask) >>> 0, (candidate) => added.get(candidate) === value)).toBe(entry);
          }
        },
      ),
    );
  });

  test("files by their inodes", () => {
    const linked = new LinkedFiles();
    const inodes = Array.from({ length: 50_000 }, (_, at) => (at % 2 === 0 ? at : at * 0x1_0000_0000 + 7));
    for (const inode of inodes) linked.add(inode, inode / 2);
    expect(inodes.every((inode) => linked.find(inode) === inode / 2)).toBe(true);
    expect(linked.find(1)).toBeNull();
  });

  test("claimed blocks, as a list of them would", async () => {
    // Three pages of the map and a little.
    const blocks = fc.nat({ max: 200_000 });
    await fc.assert(
      fc.property(fc.array(fc.tuple(blocks, fc.oneof(fc.nat({ max: 100 }), blocks)), { maxLength: 30 }), (claims) => {
        const map = new BlockMap();
        const added: [number, number][] = [];
        for (const [start, count] of claims) {
          const end = start + count + 1;
          const isFree = added.every(([from, to]) => end <= from || start >= to);
          if (!isFree) {
            // A refusal ends the reading of an index: the map is not used afterwards.
            expect(map.claim(start * BLOCK_BYTES, end * BLOCK_BYTES)).toBe(false);
            return;
          }
          expect(map.claim(start * BLOCK_BYTES, end * BLOCK_BYTES - 1)).toBe(true);
          added.push([start, end]);
        }
      }),
      { numRuns: 300 },
    );
  });

  test("a terabyte in one piece, in next to no memory", () => {
    const map = new BlockMap();
    expect(map.claim(0, 2 ** 40)).toBe(true);
    expect(map.claim(2 ** 39, 2 ** 39 + 1)).toBe(false);
    expect(map.heldBytes).toBeLessThan(2 * MIB);
  });
});
