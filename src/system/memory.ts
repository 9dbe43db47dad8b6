import { readFileSync } from "node:fs";
import { dropPages, LibcError, pageOut } from "./libc.ts";

/** Start, end, permissions and path of a line of /proc/self/maps. */
const MAPPING = /^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s+(\/.*)$/;

/** Mappings of a file in this process. */
function* mappingsOf(path: string, maps: string) {
  for (const line of maps.split("\n")) {
    const [, start, end, permissions, mapped] = MAPPING.exec(line) ?? [];
    if (mapped !== path) continue;
    const from = BigInt(`0x${start}`);
    yield { from, length: BigInt(`0x${end}`) - from, permissions };
  }
}

/**
 * Gives back the memory of a mapped file that was read and is hardly read again: the executable holds tens of MiB that
 * only the first start needs.
 */
export function forgetMappings(path: string, maps = readFileSync("/proc/self/maps", "utf8")): void {
  for (const { from, length } of mappingsOf(path, maps)) {
    try {
      pageOut(from, length);
    } catch (error) {
      // A kernel before 5.4, or a filter of system calls, does without.
      if (!(error instanceof LibcError)) throw error;
      return;
    }
  }
}

/**
 * Takes a program's code out of this process, but not out of the page cache: what is executed again is back at once. It
 * works also where other processes run the same program, whose pages the kernel leaves where they are in
 * `forgetMappings`.
 */
export function dropCode(path: string, maps = readFileSync("/proc/self/maps", "utf8")): void {
  for (const { from, length, permissions } of mappingsOf(path, maps)) {
    // What can only be read now may have been written before it was protected; code never was.
    if (permissions === "r-xp") dropPages(from, length);
  }
}

/** Below this share of the host's memory that could still be given, memory is short. */
const AVAILABLE_SHARE_MIN = 0.1;

/** Whether the host has little memory left that it could give without taking it from somebody. */
export function isShortOfMemory(meminfo = readFileSync("/proc/meminfo", "utf8")): boolean {
  const of = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(meminfo)?.[1] ?? Number.NaN);
  return of("MemAvailable") < AVAILABLE_SHARE_MIN * of("MemTotal");
}
