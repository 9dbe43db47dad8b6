import { closeSync, existsSync, openSync } from "node:fs";
import { join } from "node:path";
import { run } from "../../system/exec.ts";
import { CpuWeight } from "../cpu-weight.ts";
import type { VmmHost } from "../jail/jailed-vmm.ts";
import { LANDLOCK_VERSION_MIN, landlockVersion } from "../jail/landlock.ts";
import { prepareVmmRoot } from "../jail/vmm-root.ts";
import { withExitReason } from "../machine-end.ts";
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

export interface CloudHypervisorOptions extends VmmHost {
  /** path of the program; default: the first of `CLOUD_HYPERVISOR_PROGRAMS` that exists */
  readonly program?: string;
}

const KVM = "/dev/kvm";
const USERFAULTFD = "/dev/userfaultfd";
const VERSION_TIMEOUT_MS = 60_000;
/** Limit for a snapshot without its memory; 0.3 MiB were measured. */
const STATE_BYTES_MAX = 67_108_864;
/** Time for the guest to notice that its stream is closed, before it is saved. */
const SETTLE_MS = 50;

/** Path of the installed program; null when it is not installed. */
export function findCloudHypervisor(): string | null {
  return CLOUD_HYPERVISOR_PROGRAMS.find((path) => existsSync(path)) ?? null;
}

/**
 * Opens Cloud Hypervisor with KVM.
 * @throws CloudHypervisorVersionError when it is missing or too old; Error when /dev/kvm cannot be opened
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
  // An open shows a problem at once; a VM would fail late and with a less clear error.
  closeSync(openSync(KVM, "r+"));
  const root = await prepareVmmRoot({ program, modules: [], data: [] }, options.runtimeDirectory);
  const host = {
    ...options,
    program,
    root,
    // The launcher makes a device node for the VM's user, so the host's node needs no permission (docs/snapshot_restore.md).
    devices: existsSync(USERFAULTFD) ? [KVM, USERFAULTFD] : [KVM],
  };
  const landlock = landlockVersion() >= LANDLOCK_VERSION_MIN;
  return new CloudHypervisor(host, { version, landlock });
}

interface DriverSettings {
  readonly version: CloudHypervisorVersion;
  readonly landlock: boolean;
}

class CloudHypervisor implements Vmm {
  readonly name = "cloud-hypervisor";
  readonly version: string;
  readonly acceleration = "kvm";
  readonly #host: CloudHypervisorHost;
  readonly #landlock: boolean;
  /** whether the VMM keeps the end of the console for a reader that connects late */
  readonly #keepsConsole: boolean;
  /** How clones restore memory; set by the first clone. */
  #restoreMode: Promise<MemoryRestoreMode> | null = null;

  constructor(host: CloudHypervisorHost, settings: DriverSettings) {
    this.#host = host;
    this.version = settings.version.text;
    this.#keepsConsole = settings.version.major >= CONSOLE_KEPT_MAJOR_MIN;
    this.#landlock = settings.landlock;
  }

  async boot(shape: MachineShape): Promise<Machine> {
    return await this.#boot(shape, { fileBytesMax: this.#host.diskBytesMax });
  }

  async bootForTemplate(shape: MachineShape): Promise<Machine> {
    // It writes its memory to a file and has no disk.
    return await this.#boot(shape, { fileBytesMax: Math.max(shape.memoryBytes, STATE_BYTES_MAX) });
  }

  async save(machine: Machine): Promise<Template> {
    await using ending = new AsyncDisposableStack();
    ending.use(machine);
    if (!(machine instanceof CloudHypervisorMachine)) throw new Error("this machine cannot be saved");
    await withExitReason(machine, () => writeSnapshot(machine));
    // No process may be left that could still write to the snapshot.
    await machine.kill();
    const directory = join(this.#host.vmsDirectory, Bun.randomUUIDv7());
    return await CloudHypervisorTemplate.take(machine, directory, this.#host.log);
  }

  async clone(template: Template, cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    if (!(template instanceof CloudHypervisorTemplate)) throw new Error("this template is not Cloud Hypervisor's");
    if (this.#restoreMode !== null) return await this.#restore(template, await this.#restoreMode, cpuWeight);
    const mode = Promise.withResolvers<MemoryRestoreMode>();
    this.#restoreMode = mode.promise;
    // Concurrent clones get the same error; without them the rejection would have no handler.
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
   * Tries on the first clone whether memory can be restored on demand. That needs userfaultfd, whose permissions cannot be
   * checked without using it. The mode "Copy" is kept only when it works where "OnDemand" did not.
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
    const bounds = { fileBytesMax: this.#host.diskBytesMax, cpuWeight };
    const machine = await startCloudHypervisor(this.#host, shape, bounds);
    await using undo = new AsyncDisposableStack();
    undo.use(machine);
    await template.placeIn(machine);
    await this.#placePayload(machine);
    await withExitReason(machine, () => this.#load(machine, mode));
    undo.move();
    return machine;
  }

  /** Restores the snapshot in the machine's directory and resumes the machine. */
  async #load(machine: CloudHypervisorMachine, mode: MemoryRestoreMode): Promise<void> {
    await machine.api.restore(buildRestoreConfig(mode), machine.shape.memoryBytes);
    const { state } = await machine.api.info();
    if (state !== "Paused") throw new Error(`a restored machine is ${state}`);
    await closeRunDirectory(machine);
    // A newer VMM keeps the console itself, and a guest that floods it would keep a reader busy.
    if (!this.#keepsConsole) await machine.openConsole();
    await machine.resume();
    machine.openChannel();
    // Requests must not wait for the connection: a SYNC, for example, carries the current time.
    await machine.channelOpen();
  }

  /** A restored machine does not use these files, but its VMM opens every file in its configuration (vmm/src/vm.rs). */
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
    await withExitReason(machine, async () => {
      await machine.api.create(buildVmConfig(shape, this.#landlock));
      // A reset discards the console, and before the agent greets nothing else can explain it.
      await machine.openConsole();
      // After this call the guest runs, but only code of Coppice runs in it.
      await machine.api.boot();
    });
    await closeRunDirectory(machine);
    machine.openChannel();
    undo.move();
    return machine;
  }
}

/** Makes the VMM write a snapshot of its machine, then ends both. */
async function writeSnapshot(machine: CloudHypervisorMachine): Promise<void> {
  machine.closeChannel();
  await Bun.sleep(SETTLE_MS);
  await machine.pause();
  await CloudHypervisorTemplate.prepare(machine);
  await machine.api.snapshot(SNAPSHOT_URL, machine.shape.memoryBytes);
  await machine.end();
}
