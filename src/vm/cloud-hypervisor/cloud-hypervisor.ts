import { closeSync, existsSync, openSync } from "node:fs";
import { join } from "node:path";
import type { CgroupTree } from "../../cgroup/cgroup.ts";
import type { Log } from "../../log.ts";
import { run } from "../../system/exec.ts";
import type { VmAssets } from "../assets.ts";
import { CpuWeight } from "../cpu-weight.ts";
import { LANDLOCK_VERSION_MIN, landlockVersion } from "../jail/landlock.ts";
import type { UidPool } from "../jail/uid-pool.ts";
import { prepareVmmRoot } from "../jail/vmm-root.ts";
import { tellingEnd } from "../machine-end.ts";
import type { Machine, MachineShape, Template, Vmm } from "../vmm.ts";
import { CloudHypervisorApiError } from "./api.ts";
import { buildRestoreConfig, buildVmConfig, SNAPSHOT_URL } from "./config.ts";
import { CONSOLE_KEPT_MAJOR_MIN } from "./console.ts";
import { CloudHypervisorMachine } from "./machine.ts";
import type { MemoryRestoreMode } from "./schema.ts";
import {
  type CloudHypervisorBounds,
  type CloudHypervisorHost,
  closeRunDirectory,
  placeFile,
  startCloudHypervisor,
} from "./start.ts";
import { CloudHypervisorTemplate } from "./template.ts";
import {
  CLOUD_HYPERVISOR_MAJOR_MIN,
  CLOUD_HYPERVISOR_PROGRAMS,
  CLOUD_HYPERVISOR_RELEASES,
  type CloudHypervisorVersion,
  CloudHypervisorVersionError,
  parseCloudHypervisorVersion,
  requireCloudHypervisorVersion,
} from "./version.ts";

export interface CloudHypervisorOptions {
  readonly assets: VmAssets;
  /** parent of the machines' directories, on the file system of the layers */
  readonly vmsDirectory: string;
  /** where the VMM's root is kept */
  readonly runtimeDirectory: string;
  readonly cgroups: CgroupTree;
  /** largest disk that a machine may write, in `bytes` */
  readonly diskBytesMax: number;
  readonly uids: UidPool;
  readonly log: Log;
  /** default: where packages put it */
  readonly program?: string;
}

const KVM = "/dev/kvm";
const USERFAULTFD = "/dev/userfaultfd";
const VERSION_TIMEOUT_MS = 60_000;
/** State and configuration in a snapshot, beside the memory; 0.3 MiB where it was measured. */
const STATE_BYTES_MAX = 67_108_864;
/** For the guest's side of a closed stream to be gone before it is saved. */
const SETTLE_MS = 50;

/** The program, where it is looked for; null when it is nowhere. */
export function findCloudHypervisor(): string | null {
  return CLOUD_HYPERVISOR_PROGRAMS.find((path) => existsSync(path)) ?? null;
}

/**
 * Opens Cloud Hypervisor with KVM.
 * @throws CloudHypervisorVersionError when it is absent or too old; Error when /dev/kvm cannot be opened
 */
export async function openCloudHypervisor(options: CloudHypervisorOptions): Promise<Vmm> {
  const program = options.program ?? findCloudHypervisor();
  if (program === null) {
    throw new CloudHypervisorVersionError(
      `Cloud Hypervisor is not installed (${CLOUD_HYPERVISOR_PROGRAMS.join(", ")}): v${CLOUD_HYPERVISOR_MAJOR_MIN}.0 ` +
        `or newer is needed; ${CLOUD_HYPERVISOR_RELEASES} has static binaries`,
    );
  }
  const { stdout } = await run({ argv: [program, "--version"], timeoutMs: VERSION_TIMEOUT_MS });
  const version = parseCloudHypervisorVersion(Buffer.from(stdout).toString("utf8"));
  requireCloudHypervisorVersion(version, program);
  // Opening tells at once what a failing VM would tell late and in other words.
  closeSync(openSync(KVM, "r+"));
  const root = await prepareVmmRoot({ program, modules: [], data: [] }, options.runtimeDirectory);
  const host = {
    ...options,
    program,
    root,
    // The VM's user gets a node of its own, which needs no permission on the host's (docs/snapshot_restore.md).
    devices: existsSync(USERFAULTFD) ? [KVM, USERFAULTFD] : [KVM],
  };
  const landlock = landlockVersion() >= LANDLOCK_VERSION_MIN;
  return new CloudHypervisor(host, { version, diskBytesMax: options.diskBytesMax, landlock });
}

interface Found {
  readonly version: CloudHypervisorVersion;
  readonly diskBytesMax: number;
  readonly landlock: boolean;
}

class CloudHypervisor implements Vmm {
  readonly name = "cloud-hypervisor";
  readonly version: string;
  readonly acceleration = "kvm";
  readonly #host: CloudHypervisorHost;
  readonly #diskBytesMax: number;
  readonly #landlock: boolean;
  /** whether the VMM keeps the end of a console for a reader that comes late */
  readonly #keepsConsole: boolean;
  /** How memory is restored, once the first clone has shown it. */
  #restoreMode: Promise<MemoryRestoreMode> | null = null;

  constructor(host: CloudHypervisorHost, found: Found) {
    this.#host = host;
    this.version = found.version.text;
    this.#keepsConsole = found.version.major >= CONSOLE_KEPT_MAJOR_MIN;
    this.#diskBytesMax = found.diskBytesMax;
    this.#landlock = found.landlock;
  }

  async boot(shape: MachineShape): Promise<Machine> {
    return await this.#boot(shape, { fileBytesMax: this.#diskBytesMax });
  }

  async bootForTemplate(shape: MachineShape): Promise<Machine> {
    // It writes its memory to a file, and has no disk.
    return await this.#boot(shape, { fileBytesMax: Math.max(shape.memoryBytes, STATE_BYTES_MAX) });
  }

  async save(machine: Machine): Promise<Template> {
    await using ending = new AsyncDisposableStack();
    ending.use(machine);
    if (!(machine instanceof CloudHypervisorMachine)) throw new Error("this machine cannot be saved");
    await tellingEnd(machine, () => writeSnapshot(machine));
    // Nothing of it may be left that could still write.
    await machine.kill();
    const directory = join(this.#host.vmsDirectory, Bun.randomUUIDv7());
    return await CloudHypervisorTemplate.take(machine, directory, this.#host.log);
  }

  async clone(template: Template, cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    if (!(template instanceof CloudHypervisorTemplate)) throw new Error("this template is not Cloud Hypervisor's");
    if (this.#restoreMode !== null) return await this.#restore(template, await this.#restoreMode, cpuWeight);
    const mode = Promise.withResolvers<MemoryRestoreMode>();
    this.#restoreMode = mode.promise;
    // Others that wait are told the same error; without any it is known here already.
    mode.promise.catch(() => undefined);
    try {
      const probed = await this.#probeRestore(template, cpuWeight);
      mode.resolve(probed.mode);
      return probed.machine;
    } catch (error) {
      this.#restoreMode = null;
      mode.reject(error);
      throw error;
    }
  }

  /**
   * The first clone shows whether memory can be restored on demand: that needs more of the host (userfaultfd) than can
   * be told by looking. It is decided only when copying works where that did not.
   */
  async #probeRestore(
    template: CloudHypervisorTemplate,
    cpuWeight: number,
  ): Promise<{ machine: Machine; mode: MemoryRestoreMode }> {
    try {
      return { machine: await this.#restore(template, "OnDemand", cpuWeight), mode: "OnDemand" };
    } catch (refusal) {
      if (!(refusal instanceof CloudHypervisorApiError) || refusal.endpoint !== "vm.restore") throw refusal;
      const machine = await this.#restore(template, "Copy", cpuWeight);
      const reason = refusal.message;
      this.#host.log.warn("memory is copied into every clone, which takes time: it cannot be restored on demand", {
        reason,
      });
      return { machine, mode: "Copy" };
    }
  }

  async #restore(template: CloudHypervisorTemplate, mode: MemoryRestoreMode, cpuWeight: number): Promise<Machine> {
    const { shape } = template;
    const bounds = { fileBytesMax: this.#diskBytesMax, cpuWeight };
    const machine = await startCloudHypervisor(this.#host, shape, bounds);
    await using undo = new AsyncDisposableStack();
    undo.use(machine);
    await template.placeIn(machine);
    await this.#placePayload(machine);
    await tellingEnd(machine, () => this.#load(machine, mode));
    undo.move();
    return machine;
  }

  /** Restores the machine that its VMM was given, and brings it to run. */
  async #load(machine: CloudHypervisorMachine, mode: MemoryRestoreMode): Promise<void> {
    await machine.api.restore(buildRestoreConfig(mode), machine.shape.memoryBytes);
    const { state } = await machine.api.info();
    if (state !== "Paused") throw new Error(`a restored machine is ${state}`);
    await closeRunDirectory(machine);
    // Else nothing is read until somebody asks: a guest that floods its console would keep the daemon busy.
    if (!this.#keepsConsole) await machine.openConsole();
    await machine.resume();
    machine.openChannel();
    // What waits in a stream that is not connected grows old, the time of day for one.
    await machine.channelOpen();
  }

  /** A restored machine has no use for them, but its VMM opens what its configuration names (vmm/src/vm.rs). */
  async #placePayload(machine: Machine): Promise<void> {
    const { kernel, initramfs } = this.#host.assets;
    await placeFile(kernel, join(machine.directory, "vmlinux"));
    await placeFile(initramfs, join(machine.directory, "initramfs"));
  }

  async #boot(shape: MachineShape, bounds: CloudHypervisorBounds): Promise<Machine> {
    const machine = await startCloudHypervisor(this.#host, shape, bounds);
    await using undo = new AsyncDisposableStack();
    undo.use(machine);
    await this.#placePayload(machine);
    await tellingEnd(machine, async () => {
      await machine.api.create(buildVmConfig(shape, this.#landlock));
      // A reset takes the console with it, and at this age there is no other witness.
      await machine.openConsole();
      // The guest runs when this returns, but nothing runs in it that is not ours.
      await machine.api.boot();
    });
    await closeRunDirectory(machine);
    machine.openChannel();
    undo.move();
    return machine;
  }
}

/** Has the VMM write a snapshot of its machine, and then end both. */
async function writeSnapshot(machine: CloudHypervisorMachine): Promise<void> {
  machine.closeChannel();
  await Bun.sleep(SETTLE_MS);
  await machine.pause();
  await CloudHypervisorTemplate.prepare(machine);
  await machine.api.snapshot(SNAPSHOT_URL, machine.shape.memoryBytes);
  await machine.end();
}
