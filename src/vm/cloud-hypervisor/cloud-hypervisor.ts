import { closeSync, existsSync, openSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../../system/exec.ts";
import { CpuWeight } from "../cpu-weight.ts";
import { compressFork } from "../fork-files.ts";
import type { VmmHost } from "../jail/jailed-vmm.ts";
import { hasLandlock } from "../jail/landlock.ts";
import { VmmRoots } from "../jail/vmm-roots.ts";
import { withExitReason } from "../machine-end.ts";
import type { Disk, ForkPoint, Machine, MachineShape, Template, Vmm } from "../vmm.ts";
import { buildVmConfig, RESTORE_CONFIG, SNAPSHOT_URL } from "./config.ts";
import { keepsConsole } from "./console.ts";
import { placeFile } from "./files.ts";
import { CloudHypervisorForkPoint, checkFork } from "./fork-point.ts";
import { CloudHypervisorMachine } from "./machine.ts";
import { STATE_BYTES_MAX } from "./snapshot.ts";
import {
  type CloudHypervisorBounds,
  type CloudHypervisorHost,
  closeRunDirectory,
  startCloudHypervisor,
} from "./start.ts";
import { CloudHypervisorTemplate } from "./template.ts";
import {
  CLOUD_HYPERVISOR_MAJOR_MIN,
  CLOUD_HYPERVISOR_PROGRAMS,
  CLOUD_HYPERVISOR_RELEASES,
  CloudHypervisorVersionError,
  parseCloudHypervisorVersion,
  requireCloudHypervisorVersion,
} from "./version.ts";

export interface CloudHypervisorOptions extends VmmHost {
  /** path of the program; default: the first of `CLOUD_HYPERVISOR_PROGRAMS` that exists */
  readonly program?: string;
}

const KVM = "/dev/kvm";
const VERSION_TIMEOUT_MS = 60_000;
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
  const files = { program, modules: [], data: [] };
  const roots = await VmmRoots.open(files, options.runtimeDirectory, options.heldRoots);
  const host = {
    ...options,
    program,
    version: version.text,
    roots,
    devices: [KVM],
  };
  return new CloudHypervisor(host);
}

class CloudHypervisor implements Vmm {
  readonly name = "cloud-hypervisor";
  readonly version: string;
  readonly acceleration = "kvm";
  readonly #host: CloudHypervisorHost;

  constructor(host: CloudHypervisorHost) {
    this.#host = host;
    this.version = host.version;
  }

  async boot(shape: MachineShape): Promise<Machine> {
    return await this.#boot(shape, { fileBytesMax: this.#fileBytesMax(shape) });
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
    return await CloudHypervisorTemplate.take(machine, directory);
  }

  async clone(template: Template, cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    if (!(template instanceof CloudHypervisorTemplate)) throw new Error("this template is not Cloud Hypervisor's");
    return await this.#restore(template, cpuWeight);
  }

  async cloneFork(point: ForkPoint, disks: readonly Disk[], cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    if (!(point instanceof CloudHypervisorForkPoint)) throw new Error("this fork point is not Cloud Hypervisor's");
    return await this.#restoreFork(point, disks, cpuWeight);
  }

  async loadFork(directory: string): Promise<ForkPoint> {
    return await CloudHypervisorForkPoint.load(directory, this.#host.vmsDirectory, this.version);
  }

  async checkFork(directory: string): Promise<void> {
    await checkFork(directory, this.version);
  }

  compressFork(directory: string, signal: AbortSignal): Promise<void> {
    return compressFork(directory, signal);
  }

  async #restore(template: CloudHypervisorTemplate, cpuWeight: number): Promise<Machine> {
    const { shape } = template;
    const bounds = { fileBytesMax: this.#fileBytesMax(shape), cpuWeight };
    const machine = await startCloudHypervisor(this.#host, shape, bounds);
    await using undo = new AsyncDisposableStack();
    undo.use(machine);
    await template.placeIn(machine);
    await withExitReason(machine, async () => {
      await this.#load(machine);
      const { state } = await machine.api.info();
      if (state !== "Paused") throw new Error(`a restored machine is ${state}`);
      await machine.resume();
      machine.openChannel();
      // Requests must not wait for the connection: a SYNC, for example, carries the current time.
      await machine.channelOpen();
    });
    undo.move();
    return machine;
  }

  async #restoreFork(point: CloudHypervisorForkPoint, disks: readonly Disk[], cpuWeight: number): Promise<Machine> {
    const { shape, record } = point;
    const bounds = { fileBytesMax: this.#fileBytesMax(shape), cpuWeight, copy: { record, used: point.use() } };
    const machine = await startCloudHypervisor(this.#host, shape, bounds);
    await using undo = new AsyncDisposableStack();
    undo.use(machine);
    await point.placeIn(machine);
    // The VMM opens the disks when it restores the machine.
    await machine.placeAgain(disks);
    await withExitReason(machine, () => this.#load(machine));
    // Now the machine has the file, under another name.
    for (const disk of disks) if (!disk.readOnly) await rm(disk.path);
    undo.move();
    return machine;
  }

  /** Restores the snapshot in the machine's directory. The machine is then paused. */
  async #load(machine: CloudHypervisorMachine): Promise<void> {
    await this.#placePayload(machine);
    await machine.api.restore(RESTORE_CONFIG, machine.shape.memoryBytes);
    await closeRunDirectory(machine);
    // A newer VMM keeps the console itself, and a guest that floods it would keep a reader busy.
    if (!keepsConsole(this.version)) await machine.openConsole();
  }

  /** A machine writes to its scratch, and all of its memory to a file when it is forked. */
  #fileBytesMax({ memoryBytes }: MachineShape): number {
    return Math.max(this.#host.diskBytesMax, memoryBytes, STATE_BYTES_MAX);
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
      await machine.api.create(buildVmConfig(shape, hasLandlock()));
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
