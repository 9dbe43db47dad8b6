import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { type CgroupTree, openCgroupTree } from "../../cgroup/cgroup.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { cgroupNamespace } from "../../supervisor/machines/cgroups.ts";

/** Number of machines that a daemon has left here, which run until the next one takes them over. None may run now. */
export async function leftCount({ root, vms }: DataLayout): Promise<number> {
  if (!existsSync(vms)) return 0;
  const [homes, cgroups] = [new Set(await readdir(vms)), await existing(root)];
  const names = (await cgroups.list()).filter((name) => homes.has(name));
  const pids = await Promise.all(names.map((name) => cgroups.open(name).pids()));
  return pids.filter(({ length }) => length > 0).length;
}

/** Ends all machines of a data directory, whose lock the caller has. The next daemon ends their operations. */
export async function endLeft({ root }: DataLayout): Promise<void> {
  await using cgroups = await existing(root);
  for (const name of await cgroups.list()) await cgroups.open(name)[Symbol.asyncDispose]();
}

/** The control groups that a daemon of the data directory has made. */
function existing(root: string): Promise<CgroupTree> {
  return openCgroupTree({ namespace: cgroupNamespace(root), opensOnly: true });
}
