import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { cgroupNamespace } from "../../src/supervisor/machines/cgroups.ts";
import { type Appliance, processesWith } from "../support/appliance/appliance.ts";
import { pause } from "../support/waiting.ts";

/** The program that copies the memory of a machine that is forked, as the kernel names it. */
const COPIER = "copy-memory\n";
const HUNT_STEP_MS = 2;

/** Kills a process. Returns false when it has ended by itself. */
export function kill(pid: number): boolean {
  try {
    process.kill(pid, "SIGKILL");
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
    return false;
  }
}

/** Pids of the process that connects to the outside for the daemon, and of its launcher; empty when it does not run. */
export async function gatePids({ dataDir }: Appliance): Promise<number[]> {
  const namespace = cgroupNamespace(dataDir);
  const pids: number[] = [];
  for (const { pid } of await processesWith("gate")) {
    const group = await readFile(`/proc/${pid}/cgroup`, "utf8").catch(() => "");
    if (group.includes(`${namespace}/gate-`)) pids.push(pid);
  }
  return pids;
}

/** Pids of the programs that copy memory for the daemon. */
async function copierPids({ pid }: Appliance): Promise<number[]> {
  const pids: number[] = [];
  for (const thread of await readdir(`/proc/${pid}/task`).catch(() => [])) {
    const children = await readFile(`/proc/${pid}/task/${thread}/children`, "utf8").catch(() => "");
    for (const child of children.split(" ").filter((text) => text !== "")) {
      if ((await readFile(`/proc/${child}/comm`, "utf8").catch(() => "")) === COPIER) pids.push(Number(child));
    }
  }
  return pids;
}

/** Waits for a program that copies memory, and kills it. Returns false when none runs for so long. */
export async function killCopier(appliance: Appliance, limitMs: number): Promise<boolean> {
  for (const endsAt = performance.now() + limitMs; performance.now() < endsAt; ) {
    const [pid] = await copierPids(appliance);
    if (pid !== undefined && kill(pid)) return true;
    await pause("the next copy begins", HUNT_STEP_MS);
  }
  return false;
}

/** The instance whose machine has this process; null for other machines. */
export async function instanceOf({ dataDir }: Appliance, pid: number): Promise<string | null> {
  const group = await readFile(`/proc/${pid}/cgroup`, "utf8").catch(() => "");
  const own = group.split("\n").find((line) => line.includes(cgroupNamespace(dataDir)));
  const name = own?.split("/").at(-1) ?? "";
  const text = await readFile(join(dataDir, "vms", name, "machine.json"), "utf8").catch(() => "{}");
  return (JSON.parse(text) as { operationId?: string }).operationId ?? null;
}
