import { closeSync, openSync, readFileSync, readSync } from "node:fs";
import { dropPages, LibcError, pageOut } from "./libc.ts";

/** Start, end, permissions and path in a line of /proc/self/maps. */
const MAPPING = /^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s+(\/.*)$/;

/** The mappings of files in this process. */
function* mappings(maps: string) {
  for (const line of maps.split("\n")) {
    const [, start, end, permissions = "", mapped] = MAPPING.exec(line) ?? [];
    if (mapped === undefined) continue;
    const from = BigInt(`0x${start}`);
    yield { from, length: BigInt(`0x${end}`) - from, permissions, mapped };
  }
}

/**
 * Releases the memory of a mapped file that is rarely read again: the executable contains tens of MiB that only the first
 * start needs.
 */
export function pageOutFile(path: string, maps = readFileSync("/proc/self/maps", "utf8")): void {
  for (const { from, length, mapped } of mappings(maps)) {
    if (mapped !== path) continue;
    try {
      pageOut(from, length);
    } catch (error) {
      // Kernels before 5.4, or a filter of system calls, refuse this.
      if (!(error instanceof LibcError)) throw error;
      return;
    }
  }
}

/** Unit in which a mapping is unmapped or kept, in `bytes`. */
const BLOCK_BYTES = 1_048_576;
const PAGE_BYTES = 4096;
const ENTRY_BYTES = 8;
/** Bits of the upper half of an entry of /proc/self/pagemap: the page is in memory or in the swap; it is the file's. */
const HELD = 0b11 << 30;
const OF_FILE = 1 << 29;

/**
 * Unmaps the parts of files that this process has not written to and cannot write to. They stay in the page cache, so that
 * pages which are used again are back at once. Unlike `pageOutFile`, it also works while other processes run the same
 * program, whose pages the kernel does not page out. Some kernels refuse this; then nothing changes.
 * @param isChosen selects the files, which must stay mapped during the call
 */
export function dropUnwritten(
  isChosen: (path: string) => boolean,
  maps = readFileSync("/proc/self/maps", "utf8"),
  pages = "/proc/self/pagemap",
): void {
  const pagemap = openIfAllowed(pages);
  if (pagemap === null) return;
  using _pagemap = { [Symbol.dispose]: () => closeSync(pagemap) };
  for (const { from, length, permissions, mapped } of mappings(maps)) {
    // Another thread could write between the check of a block and its unmapping.
    if (!isChosen(mapped) || !permissions.endsWith("p") || permissions.includes("w")) continue;
    for (let offset = 0; offset < length; offset += BLOCK_BYTES) {
      const start = from + BigInt(offset);
      const bytes = Math.min(Number(length) - offset, BLOCK_BYTES);
      if (!isWritten(pagemap, start, bytes)) dropPages(start, BigInt(bytes));
    }
  }
}

/** Null when the kernel has no such file, or does not let this process read it. */
function openIfAllowed(path: string): number | null {
  try {
    return openSync(path, "r");
  } catch {
    // Expected: kernels can be built without it, and containers can hide it.
    return null;
  }
}

/** Whether a block has a page of this process alone. The loader writes to constants before it makes them read-only. */
function isWritten(pagemap: number, from: bigint, bytes: number): boolean {
  const halves = new Uint32Array((bytes / PAGE_BYTES) * (ENTRY_BYTES / Uint32Array.BYTES_PER_ELEMENT));
  readSync(pagemap, halves, 0, halves.byteLength, (Number(from) / PAGE_BYTES) * ENTRY_BYTES);
  for (let index = 1; index < halves.length; index += 2) {
    const upper = halves[index] ?? 0;
    if ((upper & HELD) !== 0 && (upper & OF_FILE) === 0) return true;
  }
  return false;
}

/** Memory is short when less than this fraction of the host's memory is available. */
const AVAILABLE_SHARE_MIN = 0.1;

/** Whether the host has little memory left without taking it from a process. */
export function isShortOfMemory(meminfo = readFileSync("/proc/meminfo", "utf8")): boolean {
  const of = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(meminfo)?.[1] ?? Number.NaN);
  return of("MemAvailable") < AVAILABLE_SHARE_MIN * of("MemTotal");
}
