import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { rmSync, truncateSync } from "node:fs";
import type { ByteString, GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { archiveChunks } from "../../../src/storage/archive/archive.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { ImageTree, type ResolvedEntry } from "../../../src/storage/tree/image-tree.ts";
import { OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import { encodeStream, pieces, type TestExtent, type TestRecord } from "../../support/images/index-stream.ts";
import { makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("fragmented-file");
const open = new OpenLayers(4);
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const BLOCK_BYTES = 1024;
const EXTENTS_COUNT = 600_000;
/** Size of the map of so many parts, with two numbers for each. */
const MAP_BYTES_MIN = 3_000_000;
const EXTENTS_PER_RECORD_COUNT = 10_000;

const fileAt = (tree: ImageTree, path: string): Promise<ResolvedEntry> =>
  tree.stat(path as GuestPath, { follow: true });

/** A file of pieces of one block each, `stride` blocks apart. */
function cutFile(path: string, stride: number, firstBlock: number): TestRecord[] {
  const records: TestRecord[] = [{ path, type: "f", size: BigInt(EXTENTS_COUNT * stride * BLOCK_BYTES) }];
  for (let first = 0; first < EXTENTS_COUNT; first += EXTENTS_PER_RECORD_COUNT) {
    const extents = Array.from({ length: EXTENTS_PER_RECORD_COUNT }, (_, at): TestExtent => {
      const number = first + at;
      return [number * stride * BLOCK_BYTES, (firstBlock + number) * BLOCK_BYTES, BLOCK_BYTES];
    });
    records.push({ path: "", type: "x", extents });
  }
  return records;
}

describe("a file in very many pieces", () => {
  let tree: ImageTree;
  beforeAll(async () => {
    const files = { disk: `${directory}/cut.disk`, index: `${directory}/cut.index` };
    const diskBytes = 2 * EXTENTS_COUNT * BLOCK_BYTES;
    await Bun.write(files.disk, "first");
    truncateSync(files.disk, diskBytes);
    const stream = pieces(encodeStream([...cutFile("gaps", 2, 0), ...cutFile("whole", 1, EXTENTS_COUNT)]));
    await writeLayerIndex({ stream, path: files.index, diskBytes });
    tree = new ImageTree([files], open);
  }, 60_000);

  test("does not block the event loop while its archive is prepared", async () => {
    let turnCount = 0;
    let ticker = setImmediate(function tick() {
      turnCount++;
      ticker = setImmediate(tick);
    });
    const chunks = archiveChunks(tree, await fileAt(tree, "/gaps"), "gaps" as ByteString);
    const first = await chunks.next();
    expect(turnCount).toBeGreaterThan(0);
    // The second chunk is more of the map, which is megabytes of text.
    turnCount = 0;
    let bytes = 0;
    // A quick machine makes a megabyte of it within one turn.
    while (turnCount === 0 && bytes < MAP_BYTES_MIN) {
      bytes += (await chunks.next()).value?.length ?? Number.POSITIVE_INFINITY;
    }
    expect(turnCount).toBeGreaterThan(0);
    clearImmediate(ticker);
    await chunks.return();
    expect(first.done).toBe(false);
  });

  test("is not read to its end to find out that it has no hole", async () => {
    const whole = await fileAt(tree, "/whole");
    expect(await tree.locate(whole, { start: 0, end: whole.size })).toBeNull();
    expect(await tree.locate(whole, { start: BLOCK_BYTES, end: 100 * BLOCK_BYTES })).toMatchObject({
      start: (EXTENTS_COUNT + 1) * BLOCK_BYTES,
    });
  });
});

describe("the archive of a file with many holes", () => {
  test("has each part in its place", async () => {
    const disk = Buffer.alloc(100 * BLOCK_BYTES, "0123456789abcdef!");
    const stride = 16;
    const extents = Array.from(
      { length: 100 },
      (_, at): TestExtent => [at * stride * BLOCK_BYTES, (99 - at) * BLOCK_BYTES, BLOCK_BYTES],
    );
    const size = 100 * stride * BLOCK_BYTES;
    const image = new ImageTree(
      [await makeLayer(directory, [{ path: "f", type: "f", size: BigInt(size), extents }], disk)],
      open,
    );
    const parts: Uint8Array[] = [];
    for await (const chunk of archiveChunks(image, await fileAt(image, "/f"), "f" as ByteString))
      parts.push(Buffer.from(chunk));
    const child = Bun.spawn(["tar", "-xO"], { stdin: Buffer.concat(parts), stdout: "pipe", timeout: 60_000 });
    const content = Buffer.from(await new Response(child.stdout).arrayBuffer());
    const expected = Buffer.alloc(size);
    for (const [logical, physical, length] of extents) disk.copy(expected, logical, physical, physical + length);
    expect(content.equals(expected)).toBe(true);
  });
});
