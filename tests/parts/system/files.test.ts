import { expect, test } from "bun:test";
import { closeSync, ftruncateSync, openSync, writeSync } from "node:fs";
import { chmod, lstat, mkdir, readdir, readFile, stat, statfs, symlink, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import * as libc from "../../../src/system/libc.ts";
import { publishFile, scratchDirectory, spreadDirectories, writeFileAtomic } from "../../../src/system/scratch.ts";
import { allocatedBytes, copySparse } from "../../../src/system/sparse.ts";
import { throwing } from "../../support/failures.ts";
import { sealsOf } from "../../support/guests/seals.ts";

const MIB = 1_048_576;
const EXT4_MAGIC = 0xef53;

async function sparseFile(path: string, sizeBytes: number, pieces: [number, Uint8Array][]): Promise<void> {
  await writeFile(path, "");
  await truncate(path, sizeBytes);
  const fd = openSync(path, "r+");
  for (const [offset, data] of pieces) writeSync(fd, data, 0, data.length, offset);
  closeSync(fd);
}

for (const parent of [tmpdir(), "/dev/shm"]) {
  test(`a sparse copy from ${parent} keeps content, size and holes`, async () => {
    await using from = await scratchDirectory(parent, "sparse-");
    await using to = await scratchDirectory(tmpdir(), "sparse-");
    const [source, target] = [join(from.path, "a"), join(to.path, "b")];
    const noise = crypto.getRandomValues(new Uint8Array(65_536));
    const big = Buffer.concat(Array.from({ length: 160 }, () => noise));
    await sparseFile(source, 200 * MIB, [
      [0, noise],
      [50 * MIB + 4096, big],
      [199 * MIB, noise],
    ]);
    await copySparse(source, target);
    expect((await stat(target)).size).toBe(200 * MIB);
    expect(await allocatedBytes(target)).toBeLessThan(11 * MIB);
    expect(Bun.hash(await readFile(target))).toBe(Bun.hash(await readFile(source)));
  });
}

test("a sparse copy of an empty file, of a hole and of an odd size", async () => {
  await using directory = await scratchDirectory(tmpdir(), "sparse-");
  const at = (name: string) => join(directory.path, name);
  await sparseFile(at("empty"), 0, []);
  await sparseFile(at("hole"), 10 * MIB + 7, []);
  await sparseFile(at("odd"), 10_001, [[9_990, Buffer.from("last bytes!")]]);
  for (const name of ["empty", "hole", "odd"]) {
    await copySparse(at(name), at(`${name}.copy`));
    expect(await readFile(at(`${name}.copy`))).toEqual(await readFile(at(name)));
  }
  expect(await allocatedBytes(at("hole.copy"))).toBe(0);
  expect(await throwing(copySparse(at("odd"), at("empty")))).toThrow("EEXIST");
});

test("a scratch directory is private, and its disposal removes any tree, and follows no link", async () => {
  await using outer = await scratchDirectory(tmpdir(), "outer-");
  await mkdir(join(outer.path, "kept"));
  let path: string;
  {
    await using inner = await scratchDirectory(outer.path, "inner-");
    path = inner.path;
    expect((await stat(path)).mode & 0o7777).toBe(0o700);
    const name = Buffer.concat([Buffer.from(`${path}/`), Buffer.from([0xff, 0xfe, 0x80])]);
    await mkdir(name);
    await writeFile(Buffer.concat([name, Buffer.from("/"), Buffer.from("n".repeat(255))]), "");
    await mkdir(join(path, "locked/in"), { recursive: true });
    await chmod(join(path, "locked"), 0);
    await symlink(join(outer.path, "kept"), join(path, "link"));
  }
  expect(await throwing(lstat(path))).toThrow("ENOENT");
  expect(await readdir(outer.path)).toEqual(["kept"]);
});

test("files are published whole, and a failed write leaves nothing behind", async () => {
  await using directory = await scratchDirectory(tmpdir(), "publish-");
  const at = (name: string) => join(directory.path, name);
  await writeFileAtomic(at("key"), "one");
  await writeFileAtomic(at("key"), "two", 0o444);
  expect(await readFile(at("key"), "utf8")).toBe("two");
  expect((await stat(at("key"))).mode & 0o7777).toBe(0o444);
  await writeFile(at("temporary"), "three");
  await publishFile(at("temporary"), at("final"));
  await mkdir(at("directory"));
  await writeFile(at("directory/entry"), "");
  expect(await throwing(writeFileAtomic(at("directory"), "four"))).toThrow();
  expect((await readdir(directory.path)).sort()).toEqual(["directory", "final", "key"]);
});

test("a sealed memfd can no longer be written, grown or shrunk", () => {
  const fd = libc.memfdCreate("test", libc.MFD_CLOEXEC | libc.MFD_ALLOW_SEALING);
  ftruncateSync(fd, 4096);
  writeSync(fd, "before");
  const seals = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_WRITE | libc.F_SEAL_SEAL;
  libc.addSeals(fd, seals);
  expect(sealsOf(fd)).toBe(seals);
  expect(() => writeSync(fd, "after")).toThrow("EPERM");
  expect(() => ftruncateSync(fd, 8192)).toThrow("EPERM");
  let error: unknown;
  try {
    libc.addSeals(fd, libc.F_SEAL_WRITE);
  } catch (caught) {
    error = caught;
  }
  expect(error).toMatchObject({ syscall: "fcntl", code: "EPERM", errno: 1 });
  closeSync(fd);
});

test("directories are spread over a disk of ext4, and other file systems are left as they are", async () => {
  for (const parent of [tmpdir(), "/dev/shm"]) {
    await using directory = await scratchDirectory(parent, "spread-");
    await spreadDirectories(directory.path);
    await spreadDirectories(directory.path);
    if ((await statfs(parent)).type !== EXT4_MAGIC) continue;
    const { stdout } = await run({ argv: ["lsattr", "-d", directory.path], timeoutMs: 5000 });
    expect(Buffer.from(stdout).toString().split(" ")[0]).toContain("T");
  }
});
