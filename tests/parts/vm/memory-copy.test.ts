/** The program that copies the memory of a running machine, with memory of this process in place of a guest's. */

import { dlopen, FFIType, type Pointer, toArrayBuffer } from "bun:ffi";
import { describe, expect, test } from "bun:test";
import { closeSync, fstatSync, readdirSync, readFileSync, readlinkSync, readSync, writeSync } from "node:fs";
import { dropPages, seekHole } from "../../../src/system/libc.ts";
import { createMemfd, SEALS_ALL } from "../../../src/vm/descriptors.ts";
import { MemoryCopy } from "../../../src/vm/qemu/memory-copy.ts";
import { MEMORY_FILE_MAGIC, type SealedFile } from "../../../src/vm/qemu/memory-file.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { copiers } from "../../support/guests/forks.ts";
import { sealsOf } from "../../support/guests/seals.ts";
import { builtAssets } from "../../support/guests/vm.ts";
import { until } from "../../support/waiting.ts";

const { symbols: libc } = dlopen("libc.so.6", {
  mmap: {
    args: [FFIType.u64, FFIType.u64, FFIType.i32, FFIType.i32, FFIType.i32, FFIType.i64],
    returns: FFIType.u64,
  },
  munmap: { args: [FFIType.u64, FFIType.u64], returns: FFIType.i32 },
});

const PAGE_BYTES = 4096;
const READ_WRITE = 3;
const MAP_PRIVATE = 2;
const MAP_FIXED = 0x10;
const MAP_ANONYMOUS = 0x20;
/** Ranges of the mappings that one process may have: the kernel's default. */
const MAPPINGS_COUNT_MAX = 65_530;
const program = builtAssets().memoryCopier;
const never = new AbortController().signal;

/** Memory of this process, as a guest's. */
class Memory implements Disposable {
  readonly address: bigint;
  readonly pagesCount: number;
  readonly bytes: Uint8Array;

  constructor(pagesCount: number) {
    this.pagesCount = pagesCount;
    this.address = BigInt(libc.mmap(0, this.sizeBytes, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    this.bytes = new Uint8Array(toArrayBuffer(Number(this.address) as Pointer, 0, this.sizeBytes));
  }

  get sizeBytes(): number {
    return this.pagesCount * PAGE_BYTES;
  }

  /** Maps new content over pages, as a clone maps those of its template. */
  map(first: number, content: Uint8Array): void {
    const fd = createMemfd("base", content.byteLength);
    writeSync(fd, content, 0, content.byteLength, 0);
    const at = this.address + BigInt(first * PAGE_BYTES);
    libc.mmap(at, content.byteLength, READ_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
    closeSync(fd);
  }

  page(number: number): Uint8Array {
    return this.bytes.subarray(number * PAGE_BYTES, (number + 1) * PAGE_BYTES);
  }

  /** Frees pages, as a guest that reports them free. */
  free(first: number, count: number): void {
    dropPages(this.address + BigInt(first * PAGE_BYTES), BigInt(count * PAGE_BYTES));
  }

  copy(signal = never): Promise<MemoryCopy> {
    const { address, sizeBytes: memoryBytes } = this;
    return MemoryCopy.open({ program, pid: process.pid, address, memoryBytes, signal });
  }

  [Symbol.dispose](): void {
    libc.munmap(this.address, this.sizeBytes);
  }
}

interface Unpacked {
  readonly memory: Buffer;
  /** number of mappings in a process that maps the file: its ranges, and the gaps */
  readonly mappingsCount: number;
  readonly pagesCount: number;
}

/** The memory that a clone of the file has. Checks the form of the file, and closes it. */
function unpack({ fd, sizeBytes }: SealedFile, memoryBytes: number): Unpacked {
  using _fd = { [Symbol.dispose]: () => closeSync(fd) };
  expect({ size: fstatSync(fd).size, hole: seekHole(fd, 0) }).toEqual({ size: sizeBytes, hole: sizeBytes });
  expect(sealsOf(fd)).toBe(SEALS_ALL);
  const content = Buffer.alloc(sizeBytes);
  expect(readSync(fd, content, 0, sizeBytes, 0)).toBe(sizeBytes);
  const number = (index: number): number => Number(content.readBigUInt64LE(8 * index));
  expect(content.readBigUInt64LE(0)).toBe(MEMORY_FILE_MAGIC);
  expect(number(1)).toBe(memoryBytes);
  const memory = Buffer.alloc(memoryBytes);
  const extents = Array.from(
    { length: number(3) },
    (_, index) => [number(4 + 2 * index), number(5 + 2 * index)] as const,
  );
  let from = number(2);
  for (const [offset, length] of extents) {
    content.copy(memory, offset, from, from + length);
    from += length;
  }
  expect(from).toBe(sizeBytes);
  const ends = new Set(extents.map(([offset, length]) => offset + length));
  const gaps = extents.filter(([offset]) => !ends.has(offset)).length + 1;
  return { memory, mappingsCount: extents.length + gaps, pagesCount: (sizeBytes - number(2)) / PAGE_BYTES };
}

async function completed(memory: Memory, copy: MemoryCopy): Promise<Unpacked & { changedBytes: number }> {
  const changedBytes = await copy.finish();
  const before = Buffer.from(memory.bytes.slice());
  const unpacked = unpack(await copy.seal(), memory.sizeBytes);
  expect(unpacked.memory.equals(before)).toBe(true);
  return { ...unpacked, changedBytes };
}

const random = (pagesCount: number): Uint8Array => {
  const bytes = new Uint8Array(pagesCount * PAGE_BYTES);
  for (let at = 0; at < bytes.length; at += 65_536) crypto.getRandomValues(bytes.subarray(at, at + 65_536));
  return bytes;
};

describe("a copy of memory", () => {
  test("has the mapped file, the changed pages, and the changes between both passes", async () => {
    using memory = new Memory(3000);
    memory.map(100, random(1000));
    memory.map(2900, random(100));
    memory.page(150).fill(1);
    // Zeros over a page of the file are a change; zeros elsewhere are not.
    memory.page(151).fill(0);
    memory.page(1500).fill(0);
    memory.page(2000).fill(2);
    memory.page(2001).fill(3);
    memory.page(2002).fill(4);
    await using copy = await memory.copy();
    memory.page(150).fill(5);
    memory.page(2000).fill(0);
    memory.page(2500).fill(6);
    memory.page(1000).fill(0);
    memory.page(2999).fill(7);
    // A freed page is zero, or has the file's content again.
    memory.free(151, 1);
    memory.free(2001, 1);
    const { changedBytes, pagesCount } = await completed(memory, copy);
    expect(pagesCount).toBe(1000 + 100 + 4);
    expect(changedBytes).toBe(9 * PAGE_BYTES);
  });

  test("of a machine without a template has the pages that are not zero", async () => {
    using memory = new Memory(2000);
    memory.bytes.set(random(3), 0);
    memory.page(1999).fill(1);
    memory.page(5).fill(0);
    await using copy = await memory.copy();
    expect(await completed(memory, copy)).toMatchObject({ pagesCount: 4, changedBytes: 5 * PAGE_BYTES });
  });

  test("of untouched memory has no page", async () => {
    using memory = new Memory(1);
    await using copy = await memory.copy();
    const changedBytes = await copy.finish();
    expect(changedBytes).toBe(0);
    expect(unpack(await copy.seal(), memory.sizeBytes).pagesCount).toBe(0);
  });

  test("of scattered pages has few enough ranges to be mapped, and is not larger than the memory", async () => {
    using memory = new Memory(100_000);
    for (let page = 0; page < 100_000; page += 4) memory.page(page).fill(page + 1);
    await using copy = await memory.copy();
    for (let page = 2; page < 100_000; page += 4) memory.page(page).fill(page + 1);
    const { mappingsCount, pagesCount } = await completed(memory, copy);
    expect(mappingsCount).toBeLessThan(MAPPINGS_COUNT_MAX);
    expect(pagesCount).toBeLessThanOrEqual(100_000);
  });

  test("does not touch pages that the machine has not touched", async () => {
    using memory = new Memory(4000);
    memory.page(0).fill(1);
    await using copy = await memory.copy();
    await copy.finish();
    const { pagesCount } = unpack(await copy.seal(), memory.sizeBytes);
    expect(pagesCount).toBe(1);
    await using second = await memory.copy();
    expect(await second.finish()).toBe(PAGE_BYTES);
  });
});

test("the program has no capability, few system calls, and only its files", async () => {
  using memory = new Memory(16);
  await using _copy = await memory.copy();
  const [pid] = copiers();
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const field = (name: string) => new RegExp(`^${name}:\\s*(\\S+)`, "m").exec(status)?.[1];
  expect([field("CapPrm"), field("CapEff"), field("CapAmb")]).toEqual(Array(3).fill("0000000000000000"));
  expect({ filter: field("Seccomp"), privileges: field("NoNewPrivs") }).toEqual({ filter: "2", privileges: "1" });
  // Standard streams, the control socket, the three files of the memory, and the copy.
  const files = readdirSync(`/proc/${pid}/fd`).map((name) => readlinkSync(`/proc/${pid}/fd/${name}`));
  const own = `/proc/${process.pid}`;
  const names = files.filter((name) => name.startsWith(own) || name.startsWith("/memfd:"));
  expect(names.sort()).toEqual([
    "/memfd:fork-memory (deleted)",
    ...["maps", "mem", "pagemap"].map((name) => `${own}/${name}`),
  ]);
  expect(files).toHaveLength(8);
});

describe("a copy that fails", () => {
  const openFilesCount = (): number => readdirSync("/proc/self/fd").length;
  /** Files of an earlier test may be closed only now. */
  const isClosed = (before: number) => until("all files are closed", () => openFilesCount() <= before);

  test("names the reason, and leaves nothing behind", async () => {
    using memory = new Memory(16);
    const before = openFilesCount();
    const { sizeBytes: memoryBytes } = memory;
    const unmapped = { program, pid: process.pid, address: 4096n, memoryBytes, signal: never };
    await using copy = await MemoryCopy.open(unmapped);
    expect(await copy.finish()).toBe(0);
    await copy[Symbol.asyncDispose]();
    const odd = { ...unmapped, address: 1n };
    expect(await throwing(MemoryCopy.open(odd))).toThrow("the memory was not copied: copy-memory: arguments: Invalid");
    const gone = { ...unmapped, pid: 2 ** 22 + 1 };
    expect(await throwing(MemoryCopy.open(gone))).toThrow("ENOENT");
    expect(await throwing(MemoryCopy.open({ ...unmapped, program: "/nonexistent" }))).toThrow("ENOENT");
    await isClosed(before);
  });

  test("because it is not wanted any more ends its program", async () => {
    using memory = new Memory(16);
    const before = openFilesCount();
    const gone = new AbortController();
    gone.abort(new Error("not wanted"));
    expect(await failureOf(memory.copy(gone.signal))).toBe(gone.signal.reason);
    const copy = await memory.copy();
    await copy[Symbol.asyncDispose]();
    await isClosed(before);
  });
});
