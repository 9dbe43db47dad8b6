import { expect, test } from "bun:test";
import { closeSync, fstatSync, readFileSync, readSync, writeSync } from "node:fs";
import { join } from "node:path";
import { seekHole } from "../../../src/system/libc.ts";
import { createMemfd, SEALS_ALL } from "../../../src/vm/descriptors.ts";
import { MEMORY_FILE_MAGIC, packMemory, type SealedFile, sealedCopy } from "../../../src/vm/qemu/memory-file.ts";
import { sealsOf } from "../../support/guests/seals.ts";

const MIB = 1_048_576;
const PAGE_BYTES = 4096;
const BLOCK_BYTES = 512;

function opened<T extends number | SealedFile>(file: T) {
  const fd = typeof file === "number" ? file : file.fd;
  return { file, [Symbol.dispose]: () => closeSync(fd) };
}

function bytesAt(fd: number, offset: number, length: number): Buffer {
  const bytes = Buffer.alloc(length);
  expect(readSync(fd, bytes, 0, length, offset)).toBe(length);
  return bytes;
}

const numberAt = (fd: number, index: number): bigint => bytesAt(fd, 8 * index, 8).readBigUInt64LE(0);

/** Checks that the file has no hole, so that it needs no later allocation, and cannot be changed. */
function expectSolid({ fd, sizeBytes }: SealedFile): void {
  expect(fstatSync(fd).size).toBe(sizeBytes);
  expect(seekHole(fd, 0)).toBe(sizeBytes);
  expect(fstatSync(fd).blocks * BLOCK_BYTES).toBeGreaterThanOrEqual(sizeBytes);
  expect(sealsOf(fd)).toBe(SEALS_ALL);
}

test("a memory file contains the used pages at the table's offsets, without holes", async () => {
  using memory = opened(createMemfd("memory", 64 * MIB));
  const parts = [
    { offset: 0, bytes: Buffer.alloc(PAGE_BYTES, "a") },
    { offset: 5 * MIB, bytes: Buffer.alloc(3 * MIB, "b") },
    { offset: 64 * MIB - PAGE_BYTES, bytes: Buffer.alloc(PAGE_BYTES, "c") },
  ];
  for (const { offset, bytes } of parts) writeSync(memory.file, bytes, 0, bytes.length, offset);
  using packed = opened(await packMemory(memory.file, 64 * MIB));
  const { fd, sizeBytes } = packed.file;
  expectSolid(packed.file);
  expect(numberAt(fd, 0)).toBe(MEMORY_FILE_MAGIC);
  expect(numberAt(fd, 1)).toBe(BigInt(64 * MIB));
  const count = Number(numberAt(fd, 3));
  let from = Number(numberAt(fd, 2));
  expect(from % PAGE_BYTES).toBe(0);
  const unpacked = Buffer.alloc(64 * MIB);
  for (let index = 0; index < count; index++) {
    const [offset, length] = [Number(numberAt(fd, 4 + 2 * index)), Number(numberAt(fd, 5 + 2 * index))];
    bytesAt(fd, from, length).copy(unpacked, offset);
    from += length;
  }
  expect(from).toBe(sizeBytes);
  expect(sizeBytes).toBeLessThan(16 * MIB);
  expect(unpacked.equals(bytesAt(memory.file, 0, 64 * MIB))).toBe(true);
});

test("the file of unwritten memory contains only a table", async () => {
  using memory = opened(createMemfd("memory", MIB));
  using packed = opened(await packMemory(memory.file, MIB));
  expectSolid(packed.file);
  expect(packed.file.sizeBytes).toBe(PAGE_BYTES);
  expect(numberAt(packed.file.fd, 3)).toBe(0n);
});

test("a sealed copy has the same bytes, also when the last page is incomplete", async () => {
  using state = opened(createMemfd("state", 0));
  const bytes = Buffer.alloc(3 * PAGE_BYTES + 7, "state ");
  writeSync(state.file, bytes, 0, bytes.length, 0);
  using copy = opened(await sealedCopy(state.file, bytes.length));
  expectSolid(copy.file);
  expect(bytesAt(copy.file.fd, 0, bytes.length).equals(bytes)).toBe(true);
});

test("memory.c and memory-file.ts agree on the format, memory.c and qemu.ts on the variable", () => {
  const text = (path: string): string => readFileSync(join(import.meta.dir, "../../..", path), "utf8");
  const source = text("vm-assets/memory/memory.c");
  expect(BigInt(/#define MAGIC UINT64_C\((0x[0-9a-f]+)\)/.exec(source)?.[1] ?? 0)).toBe(MEMORY_FILE_MAGIC);
  const fields = /struct table \{(.*?)\};/s.exec(source)?.[1]?.match(/\b\w+(?=;|\[)/g);
  expect(fields).toEqual(["magic", "memory_bytes", "bytes", "count", "extents"]);
  const variable = /#define FILE_VARIABLE "(\w+)"/.exec(source)?.[1];
  expect(text("src/vm/qemu/qemu.ts")).toContain(`  ${variable}: \``);
});
