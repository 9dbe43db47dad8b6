import { readFileSync } from "node:fs";

/** Resident memory of a process in `MiB`: now (`VmRSS`), or at most so far (`VmHWM`). */
export function residentMib(pid: number, figure: "VmRSS" | "VmHWM" = "VmRSS"): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(new RegExp(`^${figure}:\\s+(\\d+) kB$`, "m").exec(status)?.[1]) / 1024;
}
