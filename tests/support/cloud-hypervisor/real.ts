import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { type CgroupTree, openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { silentLog } from "../../../src/log.ts";
import { findCloudHypervisor, openCloudHypervisor } from "../../../src/vm/cloud-hypervisor/cloud-hypervisor.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { awaitHello, openAgent } from "../../../src/vm/templates.ts";
import type { Vmm } from "../../../src/vm/vmm.ts";
import { builtAssets, TEST_SHAPE } from "../guests/vm.ts";

const UID_BASE = 785_000;
const DISK_BYTES_MAX = 1_073_741_824;
/** Ten times as long as a boot with hardware virtualisation. */
const BOOT_TIMEOUT_MS = 15_000;

/** The real program: the requested one, else the installed one. */
export const PROGRAM = process.env["COPPICE_TEST_CH_PROGRAM"] ?? findCloudHypervisor();

/** Why the real program cannot be started on this host; null when it can. */
export function absence(): string | null {
  if (PROGRAM === null) return "Cloud Hypervisor is not installed";
  return existsSync("/dev/kvm") ? null : "there is no /dev/kvm";
}

export interface RealHost extends AsyncDisposable {
  readonly vmsDirectory: string;
  readonly cgroups: CgroupTree;
  readonly vmm: Vmm;
}

/** @param name of a directory; the paths of sockets grow with its length */
export async function openRealHost(name: string): Promise<RealHost> {
  await using stack = new AsyncDisposableStack();
  const directory = await mkdtemp("/tmp/coppice-ch-");
  stack.defer(() => rm(directory, { recursive: true, force: true }));
  await chmod(directory, 0o711);
  const vmsDirectory = join(directory, name);
  await mkdir(vmsDirectory, { mode: 0o711 });
  const namespace = `coppice-ch-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
  const cgroups = stack.use(await openCgroupTree({ namespace }));
  const vmm = await openCloudHypervisor({
    assets: builtAssets(),
    vmsDirectory,
    runtimeDirectory: join(directory, "run"),
    cgroups,
    diskBytesMax: DISK_BYTES_MAX,
    uids: new UidPool(UID_BASE, 100),
    log: silentLog,
    ...(PROGRAM === null ? {} : { program: PROGRAM }),
  });
  const owned = stack.move();
  return { vmsDirectory, cgroups, vmm, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/**
 * Why guests cannot run under the real program on this host; null when they can. It boots one, so it is called only where
 * COPPICE_TEST_VMM requests it.
 */
export async function guestAbsence(): Promise<string | null> {
  if (process.env["COPPICE_TEST_VMM"] !== "cloud-hypervisor") return "COPPICE_TEST_VMM is not cloud-hypervisor";
  const missing = absence();
  if (missing !== null) return missing;
  await using host = await openRealHost("vms");
  await using machine = await host.vmm.boot(TEST_SHAPE);
  const agent = openAgent(machine, silentLog);
  try {
    await awaitHello(machine, agent, new AbortController().signal, BOOT_TIMEOUT_MS);
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}
