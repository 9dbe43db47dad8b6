import { readFileSync } from "node:fs";
import { dropPages, LibcError, pageOut } from "./libc.ts";

/** Start, end, permissions and path in a line of /proc/self/maps. */
const MAPPING = /^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s+(\/.*)$/;

/** The mappings of a file in this process. */
function* mappingsOf(path: string, maps: string) {
  for (const line of maps.split("\n")) {
    const [, start, end, permissions, mapped] = MAPPING.exec(line) ?? [];
    if (mapped !== path) continue;
    const from = BigInt(`0x${start}`);
    yield { from, length: BigInt(`0x${end}`) - from, permissions };
  }
}

/**
 * Releases the memory of a mapped file that is rarely read again: the executable contains tens of MiB that only the first
 * start needs.
 */
export function pageOutFile(path: string, maps = readFileSync("/proc/self/maps", "utf8")): void {
  for (const { from, length } of mappingsOf(path, maps)) {
    try {
      pageOut(from, length);
    } catch (error) {
      // Kernels before 5.4, or a filter of system calls, refuse this.
      if (!(error instanceof LibcError)) throw error;
      return;
    }
  }
}

/**
 * Unmaps a program's code from this process, but not from the page cache, so that code that runs again is back at once.
 * Unlike `pageOutFile`, it also works while other processes run the same program, whose pages the kernel does not page out.
 */
export function dropCode(path: string, maps = readFileSync("/proc/self/maps", "utf8")): void {
  for (const { from, length, permissions } of mappingsOf(path, maps)) {
    // Read-only pages may have been written before they were protected, and dropping them would lose that. Code was not.
    if (permissions === "r-xp") dropPages(from, length);
  }
}

/** Memory is short when less than this fraction of the host's memory is available. */
const AVAILABLE_SHARE_MIN = 0.1;

/** Whether the host has little memory that it could give without taking it from a process. */
export function isShortOfMemory(meminfo = readFileSync("/proc/meminfo", "utf8")): boolean {
  const of = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(meminfo)?.[1] ?? Number.NaN);
  return of("MemAvailable") < AVAILABLE_SHARE_MIN * of("MemTotal");
}
