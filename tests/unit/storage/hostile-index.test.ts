import { afterAll, describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { LayerIndexError } from "../../../src/storage/index/layer-index-format.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import type { IndexLimits } from "../../../src/storage/limits.ts";
import { throwing } from "../../support/failures.ts";
import {
  encodeStream,
  encodeStreamHeader,
  encodeStreamRecord,
  pieces,
  type TestRecord,
} from "../../support/images/index-stream.ts";
import { testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("hostile-index");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const DISK_BYTES = 1_048_576;
let fileNumber = 0;

async function write(stream: Uint8Array): Promise<void> {
  const path = join(directory, `${fileNumber++}.index`);
  await writeLayerIndex({ stream: pieces(stream), path, diskBytes: DISK_BYTES });
}

const file = (name: string, extra: Partial<TestRecord> = {}): TestRecord => ({ path: name, type: "f", ...extra });
const dir = (name: string, extra: Partial<TestRecord> = {}): TestRecord => ({ path: name, type: "d", ...extra });

describe("a hostile stream", () => {
  const root = dir("");
  const bad = (...records: TestRecord[]) => encodeStream([root, ...records]);
  const link = (extra: Partial<TestRecord>): Partial<TestRecord> => ({
    nlink: 2,
    inode: 5n,
    size: 4096n,
    extents: [[0, 0, 1024]],
    ...extra,
  });
  const patched = (record: TestRecord, patch: (bytes: Buffer) => void): Buffer => {
    const encoded = encodeStreamRecord(record);
    patch(encoded.subarray(4));
    return Buffer.concat([encodeStream([root]), encoded]);
  };
  const cases: Record<string, [stream: Uint8Array, message: string]> = {
    "no bytes": [Buffer.alloc(0), "cut short"],
    "only half a header": [encodeStreamHeader().subarray(0, 5), "cut short"],
    "wrong magic": [encodeStreamHeader(1), "not an index stream"],
    "wrong version": [encodeStreamHeader(undefined, 2), "version 2"],
    "no root": [encodeStreamHeader(), "no root"],
    "root is a file": [encodeStream([file("")]), "not the root"],
    "entry before the root": [Buffer.concat([encodeStreamHeader(), encodeStreamRecord(file("a"))]), "not the root"],
    "second root": [bad(dir("")), "empty name"],
    "record too short": [Buffer.concat([encodeStreamHeader(), Buffer.from([71, 0, 0, 0])]), "record of 71 bytes"],
    "record too long": [Buffer.concat([encodeStreamHeader(), Buffer.from([1, 0, 4, 0])]), "record of 262145 bytes"],
    "record of 4 GiB": [Buffer.concat([encodeStreamHeader(), Buffer.alloc(4, 0xff)]), "record of 4294967295 bytes"],
    "cut inside a record": [bad(file("abc")).subarray(0, -1), "cut short"],
    "path length beyond the record": [patched(file("a"), (b) => b.writeUInt32LE(2, 56)), "longer than the record"],
    "path length of 4 GiB": [patched(file("a"), (b) => b.writeUInt32LE(0xffff_ffff, 56)), "longer than the record"],
    "extent count of 4 billion": [patched(file("a"), (b) => b.writeUInt32LE(0xffff_ffff, 64)), "longer than"],
    "bytes left over": [patched(file("ab"), (b) => b.writeUInt32LE(1, 56)), "bytes left"],
    "reserved field": [patched(file("a"), (b) => b.writeUInt32LE(1, 68)), "reserved"],
    "unknown type": [bad({ path: "a", type: "q" }), "unknown type"],
    "unknown flag": [bad(dir("a", { flags: 2 })), "unknown flags"],
    "opaque file": [bad(file("a", { opaque: true })), "opaque"],
    "mode with type bits": [bad(file("a", { mode: 0o100644 })), "mode"],
    "nanoseconds of a second": [bad(file("a", { mtimeNanoseconds: 1_000_000_000 })), "nanoseconds"],
    "time out of range": [bad(file("a", { mtimeSeconds: 8_640_000_000_001n })), "mtime"],
    "time far before": [bad(file("a", { mtimeSeconds: -(2n ** 63n) })), "mtime"],
    "size of 2^53": [bad(file("a", { size: 2n ** 53n })), "size"],
    "inode of 2^53": [bad(file("a", { inode: 2n ** 53n })), "inode"],
    "absolute path": [bad(file("/a")), "not relative"],
    "trailing slash": [bad(dir("a"), file("a/")), "empty name"],
    "empty component": [bad(dir("a"), file("a//b")), "parent"],
    dot: [bad(file(".")), '"." or ".."'],
    "dot dot": [bad(file("..")), '"." or ".."'],
    "dot dot inside": [bad(dir("a"), file("a/../b")), "parent"],
    NUL: [bad(file("a\0b")), "NUL"],
    "name of 256 bytes": [bad(file("n".repeat(256))), "name of 256 bytes"],
    "path of 65,537 bytes": [bad(file("n".repeat(65_537))), "path of 65537 bytes"],
    "no parent": [bad(file("a/b")), "parent"],
    "parent is a file": [bad(file("a"), file("a/b")), "parent"],
    "parent is a whiteout": [bad({ path: "a", type: "w" }, file("a/b")), "parent"],
    "parent comes later": [bad(file("a/b"), dir("a")), "parent"],
    "same path twice": [bad(file("a"), file("a")), "twice"],
    "directory twice": [bad(dir("a"), file("a/b"), dir("a")), "twice"],
    "whiteout of an entry": [bad(file("a"), { path: "a", type: "w" }), "twice"],
    "symlink without target": [bad({ path: "a", type: "l" }), "target"],
    "file with target": [bad(file("a", { target: "b" })), "target"],
    "target of 4096 bytes": [bad({ path: "a", type: "l", target: "t".repeat(4096) }), "target of 4096 bytes"],
    "target with NUL": [bad({ path: "a", type: "l", target: "b\0" }), "NUL"],
    "directory with extents": [bad(dir("a", { size: 10n, extents: [[0, 0, 10]] })), "only a file"],
    "whiteout with extents": [bad({ path: "a", type: "w", size: 10n, extents: [[0, 0, 10]] }), "only a file"],
    "empty extent": [bad(file("a", { size: 10n, extents: [[0, 0, 0]] })), "empty"],
    "extents not sorted": [
      bad(
        file("a", {
          size: 9000n,
          extents: [
            [4096, 0, 10],
            [0, 4096, 10],
          ],
        }),
      ),
      "sorted",
    ],
    "extents overlap in the file": [
      bad(
        file("a", {
          size: 9000n,
          extents: [
            [0, 0, 10],
            [9, 4096, 10],
          ],
        }),
      ),
      "overlap",
    ],
    "extent past the file": [bad(file("a", { size: 9n, extents: [[0, 0, 10]] })), "end of the file"],
    "extent that wraps": [
      bad(file("a", { size: 2n ** 53n - 1n, extents: [[2 ** 53 - 2, 0, 1024]] })),
      "end of the file",
    ],
    "extent past the disk": [
      bad(file("a", { size: 9000n, extents: [[0, DISK_BYTES - 1024, 1025]] })),
      "end of the disk",
    ],
    "extent far past the disk": [
      bad(file("a", { size: 9000n, extents: [[0, 2 ** 53 - 1024, 1024]] })),
      "end of the disk",
    ],
    "extent not aligned": [bad(file("a", { size: 9000n, extents: [[0, 512, 10]] })), "aligned"],
    "extent over 2^53": [
      patched(file("a", { size: 9n, extents: [[0, 0, 1]] }), (b) => b.writeUInt8(0xff, b.length - 9)),
      "2^53",
    ],
    "two files share a block": [
      bad(file("a", { size: 1024n, extents: [[0, 4096, 1024]] }), file("b", { size: 10n, extents: [[0, 4096, 10]] })),
      "shares a block",
    ],
    "two files share a far block": [
      bad(
        file("a", { size: 900_000n, extents: [[0, 0, 900_000]] }),
        file("b", { size: 10n, extents: [[0, 878 * 1024, 10]] }),
      ),
      "shares a block",
    ],
    "a file uses a block twice": [
      bad(
        file("a", {
          size: 9000n,
          extents: [
            [0, 0, 10],
            [10, 0, 10],
          ],
        }),
      ),
      "shares a block",
    ],
    "links without the same inode": [
      bad(file("a", link({ inode: 5n })), file("b", link({ inode: 6n }))),
      "shares a block",
    ],
    "links of other extents": [
      bad(file("a", link({})), file("b", link({ extents: [[0, 4096, 1024]] }))),
      "another link",
    ],
    "links of fewer extents": [bad(file("a", link({})), file("b", link({ extents: [] }))), "another link"],
    "links of other sizes": [bad(file("a", link({})), file("b", link({ size: 4097n }))), "another link"],
    "a link that grows": [
      bad(file("a", link({})), file("b", link({})), { path: "", type: "x", extents: [[1024, 4096, 10]] }),
      "another link",
    ],
    "more extents first": [bad({ path: "", type: "x", extents: [[0, 0, 10]] }), "without a file"],
    "more extents of a directory": [bad(dir("a"), { path: "", type: "x", extents: [[0, 0, 10]] }), "without a file"],
    "more extents with a path": [
      bad(file("a", { size: 90n }), { path: "a", type: "x", extents: [[0, 0, 10]] }),
      "other fields",
    ],
    "more extents with a mode": [
      bad(file("a", { size: 90n }), { path: "", type: "x", mode: 1, extents: [[0, 0, 10]] }),
      "other fields",
    ],
    "no more extents": [bad(file("a", { size: 90n }), { path: "", type: "x" }), "has none"],
    "xattr without name": [bad(file("a", { xattrs: [["", "v"]] })), "malformed"],
    "xattr name with NUL": [bad(file("a", { xattrs: [["a\0", "v"]] })), "NUL"],
    "xattr name of 256 bytes": [bad(file("a", { xattrs: [["n".repeat(256), "v"]] })), "malformed"],
    "xattr value of 65,537 bytes": [bad(file("a", { xattrs: [["n", "v".repeat(65_537)]] })), "malformed"],
    "xattr count too high": [patched(file("a", { xattrs: [["n", "v"]] }), (b) => b.writeUInt16LE(2, 2)), "cut short"],
    "xattr count too low": [patched(file("a", { xattrs: [["n", "v"]] }), (b) => b.writeUInt16LE(0, 2)), "bytes left"],
    "xattr value beyond": [
      patched(file("a", { xattrs: [["n", "v"]] }), (b) => b.writeUInt32LE(2, b.length - 6)),
      "cut short",
    ],
    "too many xattrs": [bad(file("a", { xattrs: Array.from({ length: 1025 }, (_, n) => [`${n}`, ""]) })), "attributes"],
  };
  for (const [name, [stream, message]] of Object.entries(cases)) {
    test(name, async () => {
      const failure = await write(stream).then(
        () => null,
        (error: unknown) => error,
      );
      expect(failure).toBeInstanceOf(LayerIndexError);
      expect((failure as Error).message).toContain(message);
    });
  }

  test("the error shows a hostile path in printable form, shortened", async () => {
    const failure = await write(bad(file(`\x1b[2J${"n".repeat(5000)}`))).then(
      () => null,
      (error: unknown) => error,
    );
    expect((failure as Error).message).not.toContain("\x1b");
    expect((failure as Error).message.length).toBeLessThan(300);
  });

  test("a tree that is too deep", async () => {
    const deep = (levels: number) =>
      encodeStream(
        Array.from({ length: levels }, (_, level) =>
          dir(
            Array(level + 1)
              .fill("d")
              .join("/"),
          ),
        ),
      );
    await write(deep(4097));
    expect(await throwing(write(deep(4098)))).toThrow("too deep");
  });

  describe("beyond the size of a layer", () => {
    const stream = encodeStream([
      root,
      dir("dir"),
      file("dir/one", { size: 9000n, extents: [[0, 0, 10]] }),
      { path: "", type: "x", extents: [[4096, 4096, 10]] },
      file("two", { size: 10n, extents: [[0, 8192, 10]] }),
    ]);
    const exact: IndexLimits = {
      entriesCountMax: 4,
      streamBytesMax: stream.length,
      namesBytesMax: 9,
      extentsCountMax: 3,
    };
    const writeWithin = (limits: IndexLimits) =>
      writeLayerIndex({
        stream: pieces(stream),
        path: join(directory, `${fileNumber++}.index`),
        diskBytes: DISK_BYTES,
        limits,
      });

    test("is refused; one that just fits is accepted", async () => {
      expect((await writeWithin(exact)).entryCount).toBe(3);
      const messages = {
        entriesCountMax: "more than 3 entries",
        streamBytesMax: "index stream of more than",
        namesBytesMax: "names are too long",
        extentsCountMax: "more than 2 extents",
      };
      for (const [name, message] of Object.entries(messages)) {
        const key = name as keyof IndexLimits;
        expect(await throwing(writeWithin({ ...exact, [key]: exact[key] - 1 }))).toThrow(message);
      }
    });
  });

  test("in single bytes takes time in proportion to its size", async () => {
    const xattrs = Array.from({ length: 3 }, (_, n) => [`user.${n}`, "v".repeat(65_000)] as const);
    const stream = bad(file("a", { xattrs }), file("b", { xattrs }));
    const path = join(directory, `${fileNumber++}.index`);
    const started = performance.now();
    await writeLayerIndex({ stream: pieces(stream, 1), path, diskBytes: DISK_BYTES });
    // Copying the buffer for every byte would copy 40 GB.
    expect(performance.now() - started).toBeLessThan(5000);
  });
});
