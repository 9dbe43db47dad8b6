import { afterAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { ByteString } from "../../../src/domain/tree/guest-path.ts";
import { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { LayerIndexError } from "../../../src/storage/index/layer-index-format.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { throwing } from "../../support/failures.ts";
import { childrenAt, entryAt, headerOf } from "../../support/images/index-reading.ts";
import { encodeStream, pieces, type TestRecord } from "../../support/images/index-stream.ts";
import { testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("layer-index");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const DISK_BYTES = 1_048_576;
let fileNumber = 0;
const newPath = () => join(directory, `${fileNumber++}.index`);
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
      const stored = await write(stream, pieceBytes);
      expect(headerOf(stored)).toMatchObject({ tableCount: 9, contentBytes: 5096, diskBytes: DISK_BYTES });
      const index = LayerIndex.open(stored);
      expect(entryAt(index, "/")).toMatchObject({ name: "", type: "d", mode: 0o1777, uid: 7 });
      expect(entryAt(index, "/etc")).toMatchObject({
        type: "d",
        opaque: true,
        mtimeSeconds: -5,
        mtimeNanoseconds: 999_999_999,
        inode: 12,
      });
      const passwd = entryAt(index, "/etc/passwd");
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
      expect(entryAt(index, "/link")).toMatchObject({ type: "l", target: "/etc/pass\xff\nwd", mode: 0o777 });
      expect(entryAt(index, "/disk")).toMatchObject({ type: "b", rdevMajor: 4095, rdevMinor: 1_048_575 });
      expect(entryAt(index, "/gone")?.type).toBe("w");
      expect(childrenAt(index, "/", null, 100).map((entry) => `${entry.type}${entry.name}`)).toEqual([
        "bdisk",
        "detc",
        "pfifo",
        "wgone",
        "llink",
        "cnull",
        "ssock",
      ]);
      expect(entryAt(index, "/nothing")).toBeNull();
      expect(entryAt(index, "/etc/passwd/x")).toBeNull();
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
    const a = entryAt(index, "/a");
    const b = entryAt(index, "/b");
    if (a === null || b === null) throw new Error("missing");
    expect(index.extents(a, 0, 10).map((extent) => extent.physical)).toEqual([0, 2048, 1024, 3072]);
    expect(index.extents(b, 0, 10)).toEqual([{ logical: 0, physical: 4096, length: 5 }]);
    index.close();
  });

  test("pages through a directory with long names, names of any bytes, and names that are prefixes", async () => {
    const names = ["a", "aa", "a\x01", "a\xff", "\xff", "\x01", "b".repeat(255), "~", "-", "A"];
    const index = LayerIndex.open(await write(encodeStream(names.map((name) => file(name)))));
    const sorted = names.toSorted((a, b) => Buffer.compare(Buffer.from(a, "latin1"), Buffer.from(b, "latin1")));
    for (const limit of [1, 2, 3, 100]) {
      const seen: string[] = [];
      for (let after: ByteString | null = null; ; ) {
        const page = childrenAt(index, "/", after, limit);
        if (page.length === 0) break;
        seen.push(...page.map((entry) => entry.name));
        after = page.at(-1)?.name ?? null;
      }
      expect(seen).toEqual(sorted);
    }
    expect(childrenAt(index, "/", bytes("aA"), 1)[0]?.name).toBe(bytes("aa"));
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

  test("a file that is damaged or truncated is refused", async () => {
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
    const path = await write(encodeStream([]));
    expect(await throwing(writeLayerIndex({ stream: pieces(encodeStream([])), path: path, diskBytes: 0 }))).toThrow(
      "EEXIST",
    );
    expect(existsSync(path)).toBe(true);
  });

  test("an error of the stream is passed on", async () => {
    async function* failing(): AsyncGenerator<Uint8Array> {
      yield encodeStream([]);
      throw new Error("the guest is gone");
    }
    expect(await throwing(writeLayerIndex({ stream: failing(), path: newPath(), diskBytes: 0 }))).toThrow("is gone");
  });
});
