/**
 * A small daemon with one machine, which a test kills. Arguments: directory, namespace, and "outlive" for a machine that
 * outlives it, or "copying" for one of which a disk is being copied, too. Prints the pids of the VMM and its launcher, or the
 * record of such a machine, then waits.
 */

import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { silentLog } from "../../../src/log.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { openQemu } from "../../../src/vm/qemu/qemu.ts";
import { builtAssets, TEST_SHAPE, UID_BASE } from "../guests/vm.ts";
import { pause } from "../waiting.ts";

const [directory = "", namespace = "", tie = ""] = process.argv.slice(2);
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
if (tie !== "") {
  const path = join(machine.directory, "S");
  await Bun.write(path, new Uint8Array(1_048_576));
  await machine.attach([{ serial: "S", path, readOnly: false }]);
  await machine.outlive?.();
  const copy = { serial: "S", path: join(directory, "copy"), pauseMsMax: 60_000, signal: new AbortController().signal };
  if (tie === "copying") await machine.copyDisk(copy);
  await Bun.write(Bun.stdout, `${JSON.stringify(machine.record?.())}\n`);
} else await Bun.write(Bun.stdout, `${pids.join(" ")}\n`);
await pause("it is killed", 60_000);
