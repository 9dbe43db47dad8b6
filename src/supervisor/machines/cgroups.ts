import { createHash } from "node:crypto";
import { type CgroupTree, openCgroupTree } from "../../cgroup/cgroup.ts";
import type { Log } from "../../log.ts";
import { CpuWeight } from "../../vm/cpu-weight.ts";

/**
 * Opens the control groups, and warns when controllers are missing: cgroup v2 gives the children of a group no controllers
 * while the group itself has processes, such as the login shell that started the daemon.
 */
export async function openCgroups(dataDirectory: string, log: Log): Promise<CgroupTree> {
  const tree = await openCgroupTree({ namespace: cgroupNamespace(dataDirectory), cpuWeight: CpuWeight.together });
  if (tree.missing.length > 0) {
    const text = "virtual machines run without some limits and statistics: the control group of this process lacks";
    const advice = "start the daemon as a service, or by systemd-run --scope -p Delegate=yes";
    log.warn(`${text} ${tree.missing.join(", ")}; ${advice}`);
  }
  return tree;
}

/** Name of the control groups of a data directory, so that several daemons on one host have different ones. */
export function cgroupNamespace(dataDirectory: string): string {
  return `coppice-${createHash("sha256").update(dataDirectory).digest("hex").slice(0, 12)}`;
}
