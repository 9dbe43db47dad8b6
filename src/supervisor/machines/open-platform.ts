import { join } from "node:path";
import type { CgroupTree } from "../../cgroup/cgroup.ts";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import type { Isolation } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { dropUnwritten, isShortOfMemory } from "../../system/memory.ts";
import type { VmAssets } from "../../vm/assets.ts";
import { explainChoice } from "../../vm/choice.ts";
import { openCloudHypervisor } from "../../vm/cloud-hypervisor/cloud-hypervisor.ts";
import type { UidPool } from "../../vm/jail/uid-pool.ts";
import type { HeldRoots } from "../../vm/jail/vmm-roots.ts";
import { Pool } from "../../vm/pool.ts";
import { PROBE_MEMO_NAME, type ProbeCandidate, type ProbeVerdict, probe } from "../../vm/probe.ts";
import { openQemu } from "../../vm/qemu/qemu.ts";
import { HELLO_TIMEOUT_MS, TemplateStore } from "../../vm/templates.ts";
import type { Acceleration, MachineShape } from "../../vm/vmm.ts";
import { IDLE_COST_NAME, watchIdleCost } from "./idle-cost.ts";
import type { MachinePlatform } from "./machine-provider.ts";
import { openRehearsal } from "./rehearsal.ts";
import type { ScratchDisks } from "./scratch-disks.ts";

export interface PlatformOptions {
  readonly layout: DataLayout;
  readonly cgroups: CgroupTree;
  readonly scratchDisks: ScratchDisks;
  readonly log: Log;
  /** whether machines may run on an emulated CPU, which is slow and not a security boundary */
  readonly emulation: "never" | "allow";
  /** time limit for trying one candidate, in `milliseconds` */
  readonly probeTimeoutMs: number;
  readonly uids: UidPool;
  readonly heldRoots: HeldRoots;
  readonly assets: () => Promise<VmAssets>;
  readonly poolSize: number;
  /** memory of all templates together, in `bytes` */
  readonly templatesMemoryBytes: number;
  /** default shape of instances; machines of this shape wait in the pool */
  readonly shape: MachineShape;
  readonly diskBytes: number;
  /** largest scratch disk that an instance may ask for, rounded as scratch disks are */
  readonly diskBytesMax: number;
}

/** Options that the drivers of all virtual machine monitors share. */
type CandidateOptions = Parameters<typeof openCloudHypervisor>[0] &
  Omit<Parameters<typeof openQemu>[0], "acceleration">;

/** The ways to run machines that may be tried, the preferred one first. */
export function machineCandidates(common: CandidateOptions, emulation: "never" | "allow"): ProbeCandidate[] {
  const cloudHypervisor: ProbeCandidate = {
    vmm: "cloud-hypervisor",
    acceleration: "kvm",
    open: () => openCloudHypervisor(common),
  };
  const qemu = (acceleration: Acceleration): ProbeCandidate => ({
    vmm: "qemu",
    acceleration,
    open: () => openQemu({ ...common, acceleration }),
  });
  return [cloudHypervisor, qemu("kvm"), ...(emulation === "allow" ? [qemu("tcg")] : [])];
}

/**
 * Chooses the VMM of this host, and opens it.
 * @throws ApiError `unavailable` that names what each candidate lacks; the reason of `signal`
 */
export async function openPlatform(options: PlatformOptions, signal: AbortSignal): Promise<MachinePlatform> {
  const { layout, log, shape } = options;
  const assets = await options.assets();
  const common = {
    assets,
    vmsDirectory: layout.vms,
    runtimeDirectory: layout.runtime,
    cgroups: options.cgroups,
    uids: options.uids,
    heldRoots: options.heldRoots,
    diskBytesMax: options.diskBytesMax,
    log,
  };
  const candidates = machineCandidates(common, options.emulation);
  const memoPath = join(layout.root, PROBE_MEMO_NAME);
  // The first instance should not have to wait for mkfs.
  const prepared = options.scratchDisks.prepare(options.diskBytes);
  // It may fail before it is awaited, and is not awaited at all when the probe throws.
  prepared.catch(() => undefined);
  await using stack = new AsyncDisposableStack();
  const { vmm, template, verdict } = await probe({
    candidates,
    shape,
    memoPath,
    assetsHash: assets.hash,
    timeoutMs: options.probeTimeoutMs,
    log,
    signal,
  });
  if (template !== null) stack.use(template);
  await prepared;
  for (const reason of explainChoice(verdict.candidates).reasons) log.info(reason);
  if (vmm === null) throw noMachines(verdict, options.emulation);
  stack.move();
  // An operator who allows long trials has a host that boots slowly.
  const helloTimeoutMs = Math.max(HELLO_TIMEOUT_MS, options.probeTimeoutMs);
  const first = given({ first: template });
  const templates = new TemplateStore({
    vmm,
    log,
    helloTimeoutMs,
    memoryBytesMax: options.templatesMemoryBytes,
    ...first,
  });
  const pool = new Pool({
    vmm,
    templates,
    shape,
    size: options.poolSize,
    log,
    isShortOfMemory,
    helloTimeoutMs,
    ...(vmm.acceleration === "tcg" ? await openRehearsal(options, assets) : {}),
  });
  pool.start();
  // The start read many pages of the program and its libraries that are never needed again: return their memory.
  void pool.idle().then(() => dropUnwritten((path) => path === process.execPath || path.endsWith(".node")));
  const idleCost = watchIdleCost({ pool, path: join(layout.root, IDLE_COST_NAME), log });
  const isolation: Isolation = vmm.acceleration === "kvm" ? "vm" : "vm-emulated";
  return {
    pool,
    forks: vmm,
    isolation,
    launcher: assets.launcher,
    [Symbol.asyncDispose]: async () => {
      idleCost[Symbol.dispose]();
      await pool[Symbol.asyncDispose]();
      await templates[Symbol.asyncDispose]();
    },
  };
}

function noMachines({ candidates }: ProbeVerdict, emulation: "never" | "allow"): ApiError {
  const reasons = candidates.map(({ vmm, acceleration, reason }) => `${vmm} with ${acceleration}: ${reason}`);
  const advice = emulation === "never" ? "; emulation is not allowed (vm.emulation)" : "";
  return new ApiError("unavailable", `no virtual machine can run on this host: ${reasons.join("; ")}${advice}`);
}
