import { readFileSync } from "node:fs";
import { LibcError, pageOut } from "./libc.ts";

/** Start, end and path of a line of /proc/self/maps. */
const MAPPING = /^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s+(\/.*)$/;

/**
 * Gives back the memory of a mapped file that was read and is hardly read again: the executable holds tens of MiB that
 * only the first start needs.
 */
export function forgetMappings(path: string, maps = readFileSync("/proc/self/maps", "utf8")): void {
  for (const line of maps.split("\n")) {
    const [, start, end, mapped] = MAPPING.exec(line) ?? [];
    if (mapped !== path) continue;
    const from = BigInt(`0x${start}`);
    try {
      pageOut(from, BigInt(`0x${end}`) - from);
    } catch (error) {
      // A kernel before 5.4, or a filter of system calls, does without.
      if (!(error instanceof LibcError)) throw error;
      return;
    }
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
