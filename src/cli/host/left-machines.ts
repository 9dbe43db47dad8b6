import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { openCgroupTree } from "../../cgroup/cgroup.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { cgroupNamespace } from "../../supervisor/machines/cgroups.ts";
import { homePaths } from "../../vm/jail/jailed-vmm.ts";

/** Number of machines that a daemon has left here, which run until the next one takes them over. */
export async function leftCount({ vms }: DataLayout): Promise<number> {
  if (!existsSync(vms)) return 0;
  const homes = (await readdir(vms)).map((name) => homePaths(join(vms, name)));
  return homes.filter(({ record, report }) => existsSync(record) && !existsSync(report)).length;
}

/** Ends all machines of a data directory, whose lock the caller has. The next daemon ends their operations. */
export async function endLeft({ root }: DataLayout): Promise<void> {
  await using cgroups = await openCgroupTree({ namespace: cgroupNamespace(root), opensOnly: true });
  for (const name of await cgroups.list()) await cgroups.open(name)[Symbol.asyncDispose]();
}
