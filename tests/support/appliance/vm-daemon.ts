/**
 * A small daemon with one machine, which a test kills. Arguments: directory, namespace.
 * Prints the pids of the VMM and its launcher, then waits.
 */

import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { silentLog } from "../../../src/log.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { openQemu } from "../../../src/vm/qemu/qemu.ts";
import { builtAssets, TEST_SHAPE, UID_BASE } from "../guests/vm.ts";
import { pause } from "../waiting.ts";

const [directory = "", namespace = ""] = process.argv.slice(2);
const vmsDirectory = join(directory, "vms");
await mkdir(vmsDirectory, { recursive: true });
const vmm = await openQemu({
  assets: builtAssets(),
  acceleration: "tcg",
  vmsDirectory,
  runtimeDirectory: join(directory, "run"),
  cgroups: await openCgroupTree({ namespace }),
  uids: new UidPool(UID_BASE + 2000, 10),
  diskBytesMax: 1_048_576,
  log: silentLog,
});
const machine = await vmm.boot(TEST_SHAPE);
const pids = await machine.cgroup.pids();
await Bun.write(Bun.stdout, `${pids.join(" ")}\n`);
await pause("it is killed", 60_000);
