import { closeSync, writeSync } from "node:fs";
import { copyFileRange, seekData, seekHole } from "../../system/libc.ts";
import { createMemfd, sealMemfd } from "../descriptors.ts";

/**
 * A memory file holds a template's guest memory: a table, then the pages that it lists, one after another. Numbers are
 * 64-bit little-endian. vm-assets/memory/memory.c reads the format; change both together.
 */
export const MEMORY_FILE_MAGIC = 0x314d454d49504f43n;
const HEADER_NUMBERS_COUNT = 4;
const NUMBER_BYTES = 8;
const PAGE_BYTES = 4096;
/** Size of one copy, in `bytes`. It takes half a millisecond; the event loop runs in between. */
const STEP_BYTES = 1_048_576;

export interface SealedFile {
  /** a sealed memfd, which the caller closes */
  readonly fd: number;
  /** host memory that it takes, in `bytes`; constant */
  readonly sizeBytes: number;
}

interface Extent {
  /** position in the guest's memory, in `bytes` */
  readonly offset: number;
  readonly length: number;
}

/**
 * Copies the pages that exist in a memfd of guest memory to a sealed memory file without holes. Any access to a hole
 * through a mapping, even a private one, would allocate a page of the file, which stays as long as the file does.
 * @param memory a memfd without writers
 * @throws LibcError when the host has no memory left
 */
export async function packMemory(memory: number, memoryBytes: number): Promise<SealedFile> {
  const extents = extentsOf(memory, memoryBytes);
  const table = tableOf(extents, memoryBytes);
  const sizeBytes = extents.reduce((sum, { length }) => sum + length, table.byteLength);
  return await sealedFile("template-memory", sizeBytes, async (fd) => {
    writeSync(fd, table, 0, table.byteLength, 0);
    let toOffset = table.byteLength;
    for (const { offset, length } of extents) {
      await copy({ from: memory, fromOffset: offset, to: fd, toOffset, length });
      toOffset += length;
    }
  });
}

/**
 * A sealed copy of a memfd, charged to the daemon's cgroup. The kernel charges a page to the cgroup of its writer, and
 * keeps a removed cgroup in memory as long as any of its pages exists.
 * @throws LibcError when the host has no memory left
 */
export async function sealedCopy(from: number, sizeBytes: number): Promise<SealedFile> {
  return await sealedFile("template-state", sizeBytes, (to) =>
    copy({ from, fromOffset: 0, to, toOffset: 0, length: sizeBytes }),
  );
}

async function sealedFile(name: string, sizeBytes: number, fill: (fd: number) => Promise<void>): Promise<SealedFile> {
  using undo = new DisposableStack();
  const fd = createMemfd(name, sizeBytes);
  undo.defer(() => closeSync(fd));
  await fill(fd);
  await sealMemfd(fd);
  undo.move();
  return { fd, sizeBytes };
}

/** Ranges of pages that hold data. */
function extentsOf(fd: number, sizeBytes: number): Extent[] {
  const extents: Extent[] = [];
  for (let offset = 0; offset < sizeBytes; ) {
    const start = seekData(fd, offset);
    if (start === null || start >= sizeBytes) break;
    offset = Math.min(seekHole(fd, start), sizeBytes);
    extents.push({ offset: start, length: offset - start });
  }
  return extents;
}

function tableOf(extents: readonly Extent[], memoryBytes: number): Uint8Array {
  const usedBytes = (HEADER_NUMBERS_COUNT + 2 * extents.length) * NUMBER_BYTES;
  const tableBytes = Math.ceil(usedBytes / PAGE_BYTES) * PAGE_BYTES;
  const numbers = [MEMORY_FILE_MAGIC, memoryBytes, tableBytes, extents.length];
  const table = new BigUint64Array(tableBytes / NUMBER_BYTES);
  table.set([...numbers, ...extents.flatMap(({ offset, length }) => [offset, length])].map(BigInt));
  return new Uint8Array(table.buffer);
}

async function copy(range: {
  from: number;
  fromOffset: number;
  to: number;
  toOffset: number;
  length: number;
}): Promise<void> {
  let done = 0;
  while (done < range.length) {
    const copied = copyFileRange({
      ...range,
      fromOffset: range.fromOffset + done,
      toOffset: range.toOffset + done,
      length: Math.min(STEP_BYTES, range.length - done),
    });
    if (copied === 0) throw new Error("the memory became shorter while it was copied");
    done += copied;
    await new Promise(setImmediate);
  }
}
