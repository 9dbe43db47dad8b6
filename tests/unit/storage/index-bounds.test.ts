/** A guest decides how large an index is; the cost of a request must not grow with it. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import type { ByteString, GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { LayerIndexError } from "../../../src/storage/index/layer-index-format.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { INDEX_ENTRIES_COUNT_MAX } from "../../../src/storage/limits.ts";
import { ImageTree } from "../../../src/storage/tree/image-tree.ts";
import type { LayerFiles } from "../../../src/storage/tree/open-layers.ts";
import { OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import { childrenAt, entryAt } from "../../support/images/index-reading.ts";
import { encodeStreamHeader, encodeStreamRecord } from "../../support/images/index-stream.ts";
import { makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const MIB = 1_048_576;
const DIRECTORIES_COUNT = 50;
const FILES_COUNT = 4000;
/** Limit of the reads of one look-up: two small reads for each of the 18 steps of a search among 2^18 entries, twice. */
const STAT_BYTES_MAX = 65_536;
/** A page of 256 entries and the search for its beginning. */
const PAGE_BYTES_MAX = 262_144;

const directory = testDirectory("index-bounds");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** `bytes` that this process has read by system calls so far. */
function readBytes(): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync("/proc/self/io", "latin1"))?.[1]);
}

/** `bytes` that `work` reads, without those of reading the counter. */
async function bytesReadBy(work: () => unknown): Promise<number> {
  const empty = readBytes();
  const before = readBytes();
  await work();
  return readBytes() - before - (before - empty);
}

describe("an index of 200,000 entries", () => {
  let layer: LayerFiles;
  let index: LayerIndex;

  beforeAll(async () => {
    const records = Array.from({ length: DIRECTORIES_COUNT }, (_, at) => [
      { path: `d${at}`, type: "d" },
      ...Array.from({ length: FILES_COUNT }, (__, number) => ({ path: `d${at}/file-${number}`, type: "f" })),
    ]);
    layer = await makeLayer(directory, records.flat());
    index = LayerIndex.open(layer.index);
  });
  afterAll(() => index.close());

  test("is large, and opening it reads only its header", async () => {
    expect(statSync(layer.index).size).toBeGreaterThan(16 * MIB);
    expect(await bytesReadBy(() => LayerIndex.open(layer.index).close())).toBeLessThan(1024);
  });

  test("is searched for an entry with a few small reads", async () => {
    for (const path of ["/d7/file-3999", "/d49/file-0", "/d0/missing", "/missing"]) {
      const bytes = await bytesReadBy(() => entryAt(index, path));
      expect(bytes).toBeGreaterThan(0);
      expect(bytes).toBeLessThan(STAT_BYTES_MAX);
    }
  });

  test("gives a page of a directory without reading the others", async () => {
    const page = () => childrenAt(index, "/d7", "file-1999" as ByteString, 256);
    expect(page()).toHaveLength(256);
    expect(await bytesReadBy(page)).toBeLessThan(PAGE_BYTES_MAX);
  });

  test("is merged with others by as few reads", async () => {
    const others = await Promise.all(
      Array.from({ length: 8 }, () => makeLayer(directory, [{ path: "d7", type: "d" }])),
    );
    const tree = new ImageTree([layer, ...others], new OpenLayers(2));
    const stat = () => tree.stat("/d7/file-77" as GuestPath, { follow: true });
    await stat();
    expect(await bytesReadBy(stat)).toBeLessThan(2 * STAT_BYTES_MAX);
  });
});

describe("a file of 16 TiB without content", () => {
  const size = 2 ** 44;

  test("is listed with its size, and its end can be read at once", async () => {
    const layer = await makeLayer(
      directory,
      [{ path: "huge", type: "f", size: BigInt(size), extents: [[size - 1024, 1024, 1024]] }],
      Buffer.alloc(4096, 7),
    );
    const tree = new ImageTree([layer], new OpenLayers(1));
    const huge = await tree.stat("/huge" as GuestPath, { follow: true });
    expect(huge.size).toBe(size);
    const readEnd = () => tree.read(huge, { start: size - 2048, end: size });
    expect(await readEnd()).toEqual(Buffer.concat([Buffer.alloc(1024), Buffer.alloc(1024, 7)]));
    expect(await bytesReadBy(readEnd)).toBeLessThan(STAT_BYTES_MAX);
  });

  test("gives its zeros in chunks, and ends when the reader leaves", async () => {
    const layer = await makeLayer(directory, [{ path: "huge", type: "f", size: BigInt(size) }]);
    const tree = new ImageTree([layer], new OpenLayers(1));
    const chunks = tree.chunks(await tree.stat("/huge" as GuestPath, { follow: true }));
    const before = process.memoryUsage().rss;
    for (let chunk = 0; chunk < 400; chunk++) expect((await chunks.next()).value?.byteLength).toBeLessThanOrEqual(MIB);
    await chunks.return();
    expect((await chunks.next()).done).toBe(true);
    expect(process.memoryUsage().rss - before).toBeLessThan(128 * MIB);
  });
});

describe("millions of entries", () => {
  /** Empty files in one directory, generated while they are read. */
  async function* endless(count: number): AsyncGenerator<Uint8Array> {
    yield encodeStreamHeader();
    yield encodeStreamRecord({ path: "", type: "d", mode: 0o755 });
    const template = encodeStreamRecord({ path: "0".repeat(8), type: "f" });
    const chunk = Buffer.alloc(template.length * 1000);
    for (let at = 0; at < count; ) {
      let used = 0;
      for (; used < chunk.length && at < count; at++, used += template.length) {
        template.copy(chunk, used);
        chunk.write(String(at).padStart(8, "0"), used + template.length - 8, "latin1");
      }
      yield Buffer.from(chunk.subarray(0, used));
    }
  }

  test("beyond the limit are refused, in bounded memory", async () => {
    const before = process.memoryUsage().rss;
    const path = join(directory, "too-many.index");
    const stream = endless(3 * INDEX_ENTRIES_COUNT_MAX);
    const failure = await writeLayerIndex({ stream, path, diskBytes: MIB }).then(
      () => null,
      (error: unknown) => error,
    );
    expect(failure).toBeInstanceOf(LayerIndexError);
    expect((failure as Error).message).toContain(`more than ${INDEX_ENTRIES_COUNT_MAX} entries`);
    expect(process.memoryUsage().rss - before).toBeLessThan(512 * MIB);
  }, 150_000);
});
