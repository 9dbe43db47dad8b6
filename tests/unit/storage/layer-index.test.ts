import { afterAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { ByteString, GuestPath } from "../../../src/domain/guest-path.ts";
import * as domain from "../../../src/domain/index-stream.ts";
import { LayerIndex } from "../../../src/storage/layer-index.ts";
import { LayerIndexError } from "../../../src/storage/layer-index-format.ts";
import { writeLayerIndex } from "../../../src/storage/layer-index-writer.ts";
import * as protocol from "../../../src/vm/protocol.ts";
import {
  encodeStream,
  encodeStreamHeader,
  encodeStreamRecord,
  pieces,
  type TestRecord,
} from "../../support/index-stream.ts";
import { testDirectory } from "../../support/layer-files.ts";

const directory = testDirectory("layer-index");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const DISK_BYTES = 1_048_576;
let fileNumber = 0;
const newPath = () => join(directory, `${fileNumber++}.index`);
const path = (text: string) => text as GuestPath;
const bytes = (text: string) => text as ByteString;

async function write(stream: Uint8Array, pieceBytes?: number): Promise<string> {
  const file = newPath();
  await writeLayerIndex({ stream: pieces(stream, pieceBytes), path: file, diskBytes: DISK_BYTES });
  return file;
}

const file = (name: string, extra: Partial<TestRecord> = {}): TestRecord => ({ path: name, type: "f", ...extra });
const dir = (name: string, extra: Partial<TestRecord> = {}): TestRecord => ({ path: name, type: "d", ...extra });

describe("a stored index", () => {
  test("gives back every field of every kind of entry", async () => {
    const stream = encodeStream([
      dir("", { mode: 0o1777, uid: 7 }),
      dir("etc", { mode: 0o755, opaque: true, mtimeSeconds: -5n, mtimeNanoseconds: 999_999_999, inode: 12n }),
      file("etc/passwd", {
        mode: 0o4644,
        uid: 4_294_967_294,
        gid: 4_294_967_295,
        inode: 99n,
        size: 10_000n,
        extents: [
          [0, 4096, 4096],
          [8192, 1024, 1000],
        ],
        xattrs: [
          ["user.a", "1\0\xff"],
          ["security.capability", ""],
        ],
      }),
      { path: "link", type: "l", target: "/etc/pass\xff\nwd", size: 13n, mode: 0o777 },
      { path: "null", type: "c", rdev: [1, 3] },
      { path: "gone", type: "w" },
      { path: "fifo", type: "p" },
      { path: "sock", type: "s" },
      { path: "disk", type: "b", rdev: [4095, 1_048_575] },
    ]);
    for (const pieceBytes of [1, 7, 65_536]) {
      const index = LayerIndex.open(await write(stream, pieceBytes));
      expect(index.entryCount).toBe(8);
      expect(index.contentBytes).toBe(5096);
      expect(index.diskBytes).toBe(DISK_BYTES);
      expect(index.stat(path("/"))).toMatchObject({ name: "", type: "d", mode: 0o1777, uid: 7 });
      expect(index.stat(path("/etc"))).toMatchObject({
        type: "d",
        opaque: true,
        mtimeSeconds: -5,
        mtimeNanoseconds: 999_999_999,
        inode: 12,
      });
      const passwd = index.stat(path("/etc/passwd"));
      if (passwd === null) throw new Error("missing");
      expect(passwd).toMatchObject({
        name: "passwd",
        type: "f",
        mode: 0o4644,
        uid: 4_294_967_294,
        gid: 4_294_967_295,
        size: 10_000,
        extentCount: 2,
      });
      expect(index.extents(passwd, 0, 10)).toEqual([
        { logical: 0, physical: 4096, length: 4096 },
        { logical: 8192, physical: 1024, length: 1000 },
      ]);
      expect(index.extents(passwd, 1, 10)).toHaveLength(1);
      expect([0, 4095, 4096, 8192, 9192].map((offset) => index.extentAt(passwd, offset))).toEqual([0, 0, 1, 1, 2]);
      expect(index.xattrs(passwd).map(({ name, value }) => [name, Buffer.from(value).toString("latin1")])).toEqual([
        ["user.a", "1\0\xff"],
        ["security.capability", ""],
      ]);
      expect(index.stat(path("/link"))).toMatchObject({ type: "l", target: "/etc/pass\xff\nwd", mode: 0o777 });
      expect(index.stat(path("/disk"))).toMatchObject({ type: "b", rdevMajor: 4095, rdevMinor: 1_048_575 });
      expect(index.stat(path("/gone"))?.type).toBe("w");
      expect(index.list(path("/"), null, 100).map((entry) => `${entry.type}${entry.name}`)).toEqual([
        "bdisk",
        "detc",
        "pfifo",
        "wgone",
        "llink",
        "cnull",
        "ssock",
      ]);
      expect(index.stat(path("/nothing"))).toBeNull();
      expect(index.stat(path("/etc/passwd/x"))).toBeNull();
      index.close();
      index.close();
      expect(() => index.root()).toThrow(LayerIndexError);
    }
  });

  test("keeps extents of several records together", async () => {
    const stream = encodeStream([
      file("a", { size: 4096n, extents: [[0, 0, 1024]] }),
      { path: "", type: "x", extents: [[1024, 2048, 1024]] },
      {
        path: "",
        type: "x",
        extents: [
          [2048, 1024, 1024],
          [3072, 3072, 10],
        ],
      },
      file("b", { size: 5n, extents: [[0, 4096, 5]] }),
    ]);
    const index = LayerIndex.open(await write(stream));
    const a = index.stat(path("/a"));
    const b = index.stat(path("/b"));
    if (a === null || b === null) throw new Error("missing");
    expect(index.extents(a, 0, 10).map((extent) => extent.physical)).toEqual([0, 2048, 1024, 3072]);
    expect(index.extents(b, 0, 10)).toEqual([{ logical: 0, physical: 4096, length: 5 }]);
    index.close();
  });

  test("pages through a directory of names that are prefixes, bytes and long", async () => {
    const names = ["a", "aa", "a\x01", "a\xff", "\xff", "\x01", "b".repeat(255), "~", "-", "A"];
    const index = LayerIndex.open(await write(encodeStream(names.map((name) => file(name)))));
    const sorted = names.toSorted((a, b) => Buffer.compare(Buffer.from(a, "latin1"), Buffer.from(b, "latin1")));
    for (const limit of [1, 2, 3, 100]) {
      const seen: string[] = [];
      for (let after: ByteString | null = null; ; ) {
        const page = index.list(path("/"), after, limit);
        if (page.length === 0) break;
        seen.push(...page.map((entry) => entry.name));
        after = page.at(-1)?.name ?? null;
      }
      expect(seen).toEqual(sorted);
    }
    expect(index.list(path("/"), bytes("aA"), 1)[0]?.name).toBe(bytes("aa"));
    index.close();
  });

  test("counts a hard-linked file once and takes the links of one inode", async () => {
    const link = { nlink: 2, inode: 5n, size: 2000n, extents: [[0, 8192, 2000]] } as const;
    const target = newPath();
    const written = await writeLayerIndex({
      stream: pieces(encodeStream([file("a", link), file("b", link)])),
      path: target,
      diskBytes: DISK_BYTES,
    });
    expect(written).toEqual({ entryCount: 2, contentBytes: 2000 });
  });

  test("an empty layer has no entry", async () => {
    const written = writeLayerIndex({ stream: pieces(encodeStream([])), path: newPath(), diskBytes: 0 });
    expect(await written).toEqual({ entryCount: 0, contentBytes: 0 });
  });

  test("a file that is damaged or cut is refused", async () => {
    const whole = await write(encodeStream([file("a"), file("b")]));
    const content = readFileSync(whole);
    for (const offset of [0, 8, 12, 17, 30, 62]) {
      const damaged = Buffer.from(content);
      damaged[offset] = (damaged[offset] as number) ^ 1;
      const copy = newPath();
      writeFileSync(copy, damaged);
      expect(() => LayerIndex.open(copy)).toThrow(LayerIndexError);
    }
    truncateSync(whole, statSync(whole).size - 1);
    expect(() => LayerIndex.open(whole)).toThrow("cut short");
    truncateSync(whole, 10);
    expect(() => LayerIndex.open(whole)).toThrow(LayerIndexError);
  });

  test("never overwrites a file", async () => {
    const taken = await write(encodeStream([]));
    await expect(writeLayerIndex({ stream: pieces(encodeStream([])), path: taken, diskBytes: 0 })).rejects.toThrow(
      "EEXIST",
    );
    expect(existsSync(taken)).toBe(true);
  });

  test("an error of the stream is handed on", async () => {
    async function* failing(): AsyncGenerator<Uint8Array> {
      yield encodeStream([]);
      throw new Error("the guest is gone");
    }
    await expect(writeLayerIndex({ stream: failing(), path: newPath(), diskBytes: 0 })).rejects.toThrow("is gone");
  });
});

test("the host's constants are those of the agent's protocol", () => {
  expect({
    INDEX_MAGIC: protocol.INDEX_MAGIC,
    INDEX_VERSION: protocol.INDEX_VERSION,
    INDEX_RECORD_BYTES_MAX: protocol.INDEX_RECORD_BYTES_MAX,
    INDEX_RECORD_FIXED_BYTES: protocol.INDEX_RECORD_FIXED_BYTES,
    IndexFlag: protocol.IndexFlag,
  } as typeof domain).toEqual({ ...domain });
});

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

  test("the message shows a hostile path in printable form and not in full", async () => {
    const failure = await write(bad(file(`\x1b[2J${"n".repeat(5000)}`))).then(
      () => null,
      (error: unknown) => error,
    );
    expect((failure as Error).message).not.toContain("\x1b");
    expect((failure as Error).message.length).toBeLessThan(300);
  });

  test("too deep a tree", async () => {
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
    await expect(write(deep(4098))).rejects.toThrow("too deep");
  });
});
