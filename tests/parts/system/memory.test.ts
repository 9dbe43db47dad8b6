import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { dropUnwritten, isShortOfMemory, pageOutFile } from "../../../src/system/memory.ts";

const SIZE_BYTES = 4_194_304;

/** Resident `kB` of the mappings of a file. */
function residentKb(path: string): number {
  const parts = readFileSync("/proc/self/smaps", "utf8").split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m);
  const ofFile = parts.filter((part) => part.split("\n")[0]?.endsWith(` ${path}`));
  return ofFile.reduce((sum, part) => sum + Number(/^Rss:\s+(\d+) kB$/m.exec(part)?.[1] ?? 0), 0);
}

test("drops the pages of a mapped file, which can be read again", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-memory-"));
  const path = join(directory, "file");
  await writeFile(path, Buffer.alloc(SIZE_BYTES, 7));
  const mapped = Bun.mmap(path);
  const sum = (): number => mapped.reduce((total, byte) => total + byte, 0);
  expect(sum()).toBe(SIZE_BYTES * 7);
  // Dirty pages would have to be written first.
  const file = Bun.spawnSync(["sync", path]);
  expect(file.exitCode).toBe(0);
  expect(residentKb(path)).toBe(SIZE_BYTES / 1024);
  pageOutFile(path);
  expect(residentKb(path)).toBeLessThan(SIZE_BYTES / 1024 / 2);
  expect(sum()).toBe(SIZE_BYTES * 7);
  await rm(directory, { recursive: true });
});

test("drops the mappings of a program, which continues to run", () => {
  const before = residentKb(process.execPath);
  expect(before).toBeGreaterThan(0);
  dropUnwritten((path) => path === process.execPath);
  expect(residentKb(process.execPath)).toBeLessThan(before);
});

test("keeps the written pages of a private mapping, and drops the rest", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-memory-"));
  const path = join(directory, "file");
  await writeFile(path, Buffer.alloc(SIZE_BYTES, 7));
  const mapped = Bun.mmap(path, { shared: false });
  const sum = (): number => mapped.reduce((total, byte) => total + byte, 0);
  expect(sum()).toBe(SIZE_BYTES * 7);
  mapped[SIZE_BYTES / 2] = 8;
  dropUnwritten((each) => each === path);
  expect(residentKb(path)).toBeLessThan(SIZE_BYTES / 1024 / 2);
  expect(sum()).toBe(SIZE_BYTES * 7 + 1);
  await rm(directory, { recursive: true });
});

test("memory is short when less than a tenth of it is available", () => {
  const meminfo = (availableKb: number) =>
    `MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:   ${availableKb} kB\n`;
  expect(isShortOfMemory(meminfo(99))).toBe(true);
  expect(isShortOfMemory(meminfo(101))).toBe(false);
  expect(isShortOfMemory("")).toBe(false);
});
