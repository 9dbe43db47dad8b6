import { afterAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import {
  closeSync,
  linkSync,
  mkdirSync,
  openSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import type { GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { ImageTree } from "../../../src/storage/tree/image-tree.ts";
import { OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import { run } from "../../../src/system/exec.ts";
import { encodeStream, pieces, type TestExtent, type TestRecord } from "../../support/images/index-stream.ts";
import { testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("ext4");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const BLOCK_BYTES = 4096;
const DISK_BYTES = 33_554_432;

/** Extents as e2fsprogs reads them: an independent opinion. */
async function extentsOf(disk: string, path: string, sizeBytes: number): Promise<TestExtent[]> {
  const { stdout } = await run({ argv: ["debugfs", "-R", `ex -l ${path}`, disk], timeoutMs: 10_000 });
  const rows = Buffer.from(stdout)
    .toString()
    .matchAll(/^\s*\d+\/\s*\d+\s+\d+\/\s*\d+\s+(\d+)\s*-\s*\d+\s+(\d+)\s*-\s*\d+\s+(\d+)\s*$/gm);
  return [...rows].map(([, logical, physical, blocks]) => {
    const start = Number(logical) * BLOCK_BYTES;
    const length = Math.min(Number(blocks) * BLOCK_BYTES, sizeBytes - start);
    return [start, Number(physical) * BLOCK_BYTES, length];
  });
}

test("files of a real ext4 disk are read without a mount: small, large, sparse and hard-linked", async () => {
  const root = join(directory, "root");
  mkdirSync(join(root, "upper"), { recursive: true });
  const contents = new Map<string, Buffer>([
    ["small", Buffer.from("hello\n")],
    ["large", randomBytes(3_000_001)],
    ["empty", Buffer.alloc(0)],
  ]);
  for (const [name, content] of contents) writeFileSync(join(root, "upper", name), content);
  const sparse = Buffer.alloc(2_000_123);
  const fd = openSync(join(root, "upper", "sparse"), "w");
  for (const offset of [8192, 700_416, 2_000_000]) {
    const part = randomBytes(100);
    part.copy(sparse, offset);
    writeSync(fd, part, 0, part.length, offset);
  }
  writeSync(fd, Buffer.alloc(1), 0, 1, sparse.length - 1);
  closeSync(fd);
  contents.set("sparse", sparse);
  linkSync(join(root, "upper", "large"), join(root, "upper", "linked"));
  contents.set("linked", contents.get("large") as Buffer);
  symlinkSync("large", join(root, "upper", "link"));

  const disk = join(directory, "layer.disk");
  await run({
    argv: ["mke2fs", "-q", "-t", "ext4", "-b", String(BLOCK_BYTES), "-d", root, disk, `${DISK_BYTES / 1024}k`],
    timeoutMs: 20_000,
  });
  const records: TestRecord[] = [{ path: "link", type: "l", target: "large" }];
  for (const [name, content] of contents) {
    const { ino, nlink } = statSync(join(root, "upper", name));
    const extents = await extentsOf(disk, `/upper/${name}`, content.length);
    records.push({ path: name, type: "f", size: BigInt(content.length), inode: BigInt(ino), nlink, extents });
  }
  expect(records.find((record) => record.path === "sparse")?.extents?.length).toBeGreaterThan(1);
  const index = join(directory, "layer.index");
  await writeLayerIndex({ stream: pieces(encodeStream(records)), path: index, diskBytes: DISK_BYTES });
  const image = new ImageTree([{ disk, index }], new OpenLayers(1));
  for (const [name, content] of [...contents, ["link", contents.get("large") as Buffer] as const]) {
    const entry = await image.stat(`/${name}` as GuestPath, { follow: true });
    expect((await image.read(entry)).equals(content)).toBe(true);
  }
});
