import { dlopen, FFIType, ptr } from "bun:ffi";
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { dropUnwritten, isShortOfMemory, pageOutFile } from "../../../src/system/memory.ts";

const SIZE_BYTES = 4_194_304;
const PROT_READ = 1;
const { mprotect } = dlopen("libc.so.6", {
  mprotect: { args: [FFIType.ptr, FFIType.u64, FFIType.i32], returns: FFIType.i32 },
}).symbols;

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

/** Calls `work` with a private mapping of a file of sevens, a function that adds up its bytes, and one that makes it read-only. */
async function privateMapping(
  work: (mapping: {
    readonly path: string;
    readonly bytes: Uint8Array;
    readonly sum: () => number;
    readonly protect: () => void;
  }) => void,
): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-memory-"));
  const path = join(directory, "file");
  await writeFile(path, Buffer.alloc(SIZE_BYTES, 7));
  const bytes = Bun.mmap(path, { shared: false });
  const sum = (): number => bytes.reduce((total, byte) => total + byte, 0);
  expect(sum()).toBe(SIZE_BYTES * 7);
  work({ path, bytes, sum, protect: () => expect(mprotect(ptr(bytes), SIZE_BYTES, PROT_READ)).toBe(0) });
  await rm(directory, { recursive: true });
}

test("keeps the written pages of a private mapping, and drops the rest", async () => {
  await privateMapping(({ path, bytes, sum, protect }) => {
    bytes[SIZE_BYTES / 2] = 8;
    protect();
    dropUnwritten((each) => each === path);
    expect(residentKb(path)).toBeLessThan(SIZE_BYTES / 1024 / 2);
    expect(sum()).toBe(SIZE_BYTES * 7 + 1);
  });
});

test("keeps a mapping that another thread could write to", async () => {
  await privateMapping(({ path }) => {
    dropUnwritten((each) => each === path);
    expect(residentKb(path)).toBe(SIZE_BYTES / 1024);
  });
});

test("keeps all mappings when the kernel does not say which pages were written", async () => {
  await privateMapping(({ path, protect }) => {
    protect();
    dropUnwritten((each) => each === path, undefined, "/proc/self/no-pagemap");
    expect(residentKb(path)).toBe(SIZE_BYTES / 1024);
  });
});

test("memory is short when less than a tenth of it is available", () => {
  const meminfo = (availableKb: number) =>
    `MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:   ${availableKb} kB\n`;
  expect(isShortOfMemory(meminfo(99))).toBe(true);
  expect(isShortOfMemory(meminfo(101))).toBe(false);
  expect(isShortOfMemory("")).toBe(false);
});
