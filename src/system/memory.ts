import { readFileSync } from "node:fs";

/** Below this share of the host's memory that could still be given, memory is short. */
const AVAILABLE_SHARE_MIN = 0.1;

/** Whether the host has little memory left that it could give without taking it from somebody. */
export function isShortOfMemory(meminfo = readFileSync("/proc/meminfo", "utf8")): boolean {
  const of = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(meminfo)?.[1] ?? Number.NaN);
  return of("MemAvailable") < AVAILABLE_SHARE_MIN * of("MemTotal");
}
