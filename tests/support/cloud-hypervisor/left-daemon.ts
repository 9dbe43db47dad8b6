/**
 * A small daemon with one machine of a stand-in for Cloud Hypervisor, which a test kills. Arguments: directory, namespace, and
 * the number of layers. Its machine runs a command whose output it appends to the file `output`. Prints the machine's record.
 */

import { appendFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { silentLog } from "../../../src/log.ts";
import { openCloudHypervisor } from "../../../src/vm/cloud-hypervisor/cloud-hypervisor.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { greeted } from "../guests/vm.ts";
import { pause, until } from "../waiting.ts";
import { blankDisks, COUNTING, SHAPE, standInAssets, UID_BASE } from "./cloud-hypervisor.ts";

const [directory = "", namespace = "", layers = ""] = process.argv.slice(2);
const vmm = await openCloudHypervisor({
  assets: standInAssets(directory),
  vmsDirectory: join(directory, "vms"),
  runtimeDirectory: join(directory, "run"),
  cgroups: await openCgroupTree({ namespace }),
  diskBytesMax: 1_073_741_824,
  uids: new UidPool(UID_BASE, 100),
  log: silentLog,
  program: join(directory, "cloud-hypervisor"),
});
const machine = await vmm.boot(SHAPE);
const agent = await greeted(machine);
await machine.attach(blankDisks({ directory }, machine, Number(layers)));
await agent.mount({ layers: 1, scratch: true });
await machine.outlive?.();
const output = join(directory, "output");
writeFileSync(output, "");
let isTalking = false;
agent.exec(
  COUNTING,
  (_stream, chunk) => {
    appendFileSync(output, chunk);
    isTalking = true;
    return undefined;
  },
  { spid: 1 },
);
await until("the command talks", () => isTalking);
await Bun.write(Bun.stdout, `${JSON.stringify(machine.record?.())}\n`);
await pause("it is killed", 60_000);
