import { existsSync, readFileSync } from "node:fs";
import { CommandError, run } from "./exec.ts";

/** Exists if systemd started this machine (sd_booted(3)). */
const SYSTEMD_RUNS = "/run/systemd/system";
const ANSWER_MS_MAX = 5000;

/** Whether systemd manages the services of this host. */
export function isSystemdHost(): boolean {
  return existsSync(SYSTEMD_RUNS);
}

/** Whether the host is being shut down or rebooted; false when systemd does not say. */
export async function isHostStopping(): Promise<boolean> {
  return isSystemdHost() && (await property(["--property=SystemState"])) === "stopping";
}

/** The service whose main process `pid` is; null when it is none of systemd's. */
export async function serviceOf(pid: number): Promise<string | null> {
  if (!isSystemdHost()) return null;
  const unit = unitIn(cgroupOf(pid));
  if (unit === null) return null;
  return (await property(["--property=MainPID", "--", unit])) === String(pid) ? unit : null;
}

/** Whether a service runs. */
export async function isActive(unit: string): Promise<boolean> {
  return isSystemdHost() && (await property(["--property=ActiveState", "--", unit])) === "active";
}

/** The innermost service in the text of /proc/PID/cgroup; null when there is none. */
export function unitIn(cgroups: string): string | null {
  for (const line of cgroups.split("\n")) {
    const service = line.split("/").findLast((part) => part.endsWith(".service"));
    if (service !== undefined) return service;
  }
  return null;
}

function cgroupOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cgroup`, "utf8");
  } catch (error) {
    // It has ended.
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "ENOENT" && code !== "ESRCH") throw error;
    return "";
  }
}

/** The value of a property; null when systemd does not answer. */
async function property(args: readonly string[]): Promise<string | null> {
  try {
    const { stdout } = await run({ argv: ["systemctl", "show", "--value", ...args], timeoutMs: ANSWER_MS_MAX });
    return Buffer.from(stdout).toString("utf8").trim();
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    return null;
  }
}
