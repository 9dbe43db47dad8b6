import { closeSync, fstatSync, openSync } from "node:fs";
import { run } from "../../system/exec.ts";
import type { SocketChannel } from "../agent/channel.ts";
import { CpuWeight } from "../cpu-weight.ts";
import { createMemfd } from "../descriptors.ts";
import { compressFork } from "../fork-files.ts";
import { firstAnswer, launchVmm, openMachineHome, type VmmHost, vmmPid } from "../jail/jailed-vmm.ts";
import { textOf } from "../jail/machine-files.ts";
import type { VmmFiles } from "../jail/vmm-root.ts";
import { VmmRoots } from "../jail/vmm-roots.ts";
import { VmmError, withExitReason } from "../machine-end.ts";
import type { Acceleration, Disk, ForkPoint, Machine, MachineRecord, MachineShape, Template, Vmm } from "../vmm.ts";
import { buildQemuArgs, hasMemoryFile, QEMU_PROGRAM, type QemuStart } from "./args.ts";
import { STATE_BYTES_MAX } from "./device-state.ts";
import { QemuForkPoint } from "./fork.ts";
import { checkFork, readFork } from "./fork-files.ts";
import { originOf } from "./fork-origin.ts";
import { PROGRAM_NAME, QemuMachine } from "./machine.ts";
import { packMemory, sealedCopy } from "./memory-file.ts";
import { Qmp } from "./qmp.ts";
import { SavedMachine } from "./saved-machine.ts";
import { connectToQemu, listenForQemu } from "./sockets.ts";

export interface QemuOptions extends VmmHost {
  readonly acceleration: Acceleration;
}

const QEMU_FILES: VmmFiles = {
  program: QEMU_PROGRAM,
  modules: ["/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so"],
  data: [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/bios-256k.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
  ],
};

const DEVICES: Record<Acceleration, readonly string[]> = { kvm: ["/dev/kvm"], tcg: [] };
/** Descriptors of QEMU, in the order of `extraFds`. */
const QMP_FD = 3;
const AGENT_FD = 4;
const FIRST_FILE_FD = 5;
/**
 * Environment of a clone. Its files are the template's memory, the template's device state and the library that maps
 * the memory into the guest. vm-assets/memory/memory.c has the same names.
 */
const CLONE_ENVIRONMENT = {
  LD_PRELOAD: `/proc/self/fd/${FIRST_FILE_FD + 2}`,
  GUEST_MEMORY_FD: `${FIRST_FILE_FD}`,
};
const PIDS_MAX = 256;
const VERSION_TIMEOUT_MS = 60_000;
/** Length of a refusal's reason in an error, in characters. */
const REASON_TEXT_MAX = 500;
const MIGRATION_TIMEOUT_MS = 30_000;
const MIGRATION_POLL_MS = 2;

/**
 * Opens QEMU with one acceleration.
 * @throws CommandError when QEMU is not installed; Error when the acceleration's device cannot be opened
 */
export async function openQemu(options: QemuOptions): Promise<Vmm> {
  // An open shows a problem at once; a VM would fail late and with a less clear error.
  for (const device of DEVICES[options.acceleration]) closeSync(openSync(device, "r+"));
  return new Qemu(
    options,
    await installedVersion(),
    await VmmRoots.open(QEMU_FILES, options.runtimeDirectory, options.heldRoots),
  );
}

/** Version of the host's QEMU, with that of its package. */
async function installedVersion(): Promise<string> {
  const { stdout } = await run({ argv: [QEMU_PROGRAM, "--version"], timeoutMs: VERSION_TIMEOUT_MS });
  return /version ([^\n]+)/.exec(Buffer.from(stdout).toString("utf8"))?.[1] ?? "unknown";
}

/** Resources of a machine of `bootForTemplate` that are needed to save it. */
interface TemplateSource {
  readonly memory: number;
  readonly root: string;
}

class QemuTemplate extends SavedMachine implements Template {
  readonly createdAt = Date.now();
}

interface StartOptions {
  readonly root: string;
  readonly owned?: AsyncDisposableStack;
  /** default: the weight of a machine in use */
  readonly cpuWeight?: number;
  /** host memory that the machine shares with the saved one, in `bytes`; default: none */
  readonly template?: Pick<MachineRecord, "templateId" | "templateBytes">;
}

class Qemu implements Vmm {
  readonly name = "qemu";
  readonly version: string;
  readonly acceleration: Acceleration;
  readonly #options: QemuOptions;
  readonly #roots: VmmRoots;
  /** Machines of `bootForTemplate` that are not saved yet. */
  readonly #sources = new WeakMap<Machine, TemplateSource>();

  constructor(options: QemuOptions, version: string, roots: VmmRoots) {
    this.#options = options;
    this.#roots = roots;
    this.version = version;
    this.acceleration = options.acceleration;
  }

  get isOutdated(): boolean {
    return this.#roots.isOutdated;
  }

  async boot(shape: MachineShape): Promise<Machine> {
    using files = new DisposableStack();
    const [kernel, initramfs] = this.#openAssets(files);
    const start = { kind: "cold", kernel: FIRST_FILE_FD, initramfs: FIRST_FILE_FD + 1 } as const;
    return await this.#start(shape, start, [kernel, initramfs], { root: this.#roots.current });
  }

  async bootForTemplate(shape: MachineShape): Promise<Machine> {
    using files = new DisposableStack();
    const [kernel, initramfs] = this.#openAssets(files);
    await using memory = ownedDescriptor(createMemfd("guest-memory", shape.memoryBytes));
    const root = memory.owned.use(await this.#roots.refresh());
    const start = { kind: "template", kernel: FIRST_FILE_FD, initramfs: FIRST_FILE_FD + 1, memory: FIRST_FILE_FD + 2 };
    const machine = await this.#start(shape, start as QemuStart, [kernel, initramfs, memory.fd], {
      root: root.path,
      owned: memory.owned.move(),
    });
    this.#sources.set(machine, { memory: memory.fd, root: root.path });
    return machine;
  }

  async save(machine: Machine): Promise<Template> {
    await using ending = new AsyncDisposableStack();
    ending.use(machine);
    const source = this.#sources.get(machine);
    if (!(machine instanceof QemuMachine) || source === undefined) throw new Error("this machine cannot be saved");
    this.#sources.delete(machine);
    await using owned = new AsyncDisposableStack();
    const { path: root } = owned.use(this.#roots.hold(source.root));
    await using written = ownedDescriptor(createMemfd("device-state", 0));
    await withExitReason(machine, async () => {
      await machine.pause();
      await machine.qmp.sendDescriptor("getfd", { fdname: "state" }, written.fd);
      await machine.qmp.execute("migrate", { uri: "fd:state" });
      await this.#migrated(machine.qmp);
    });
    // Memory and state are final when their last writer is gone.
    await machine.kill();
    const memory = await packMemory(source.memory, machine.shape.memoryBytes);
    owned.defer(() => closeSync(memory.fd));
    const state = await sealedCopy(written.fd, fstatSync(written.fd).size);
    owned.defer(() => closeSync(state.fd));
    return new QemuTemplate({ shape: machine.shape, root, memory, state }, owned.move());
  }

  async clone(template: Template, cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    if (!(template instanceof QemuTemplate)) throw new Error("this template is not QEMU's");
    await using undo = new AsyncDisposableStack();
    const machine = undo.use(await this.#startFrom(template, "clone", cpuWeight));
    await withExitReason(machine, async () => {
      await this.#load(machine);
      await machine.resume();
    });
    undo.move();
    return machine;
  }

  async cloneFork(point: ForkPoint, disks: readonly Disk[], cpuWeight: number = CpuWeight.inUse): Promise<Machine> {
    if (!(point instanceof QemuForkPoint)) throw new Error("this fork point is not QEMU's");
    await using undo = new AsyncDisposableStack();
    const machine = undo.use(await this.#startFrom(point, "fork", cpuWeight));
    await withExitReason(machine, async () => {
      // The state contains the disks.
      await machine.attachAgain(disks, point.disks);
      await this.#load(machine);
    });
    undo.move();
    return machine;
  }

  async loadFork(directory: string): Promise<ForkPoint> {
    await using owned = new AsyncDisposableStack();
    const { path: root } = owned.use(await this.#roots.refresh());
    // The newest root has the host's program.
    const version = await installedVersion();
    const files = await readFork(directory, (shape) => originOf(this.acceleration, shape, version));
    for (const { fd } of [files.memory, files.state]) owned.defer(() => closeSync(fd));
    return new QemuForkPoint({ ...files, root, pausedMs: 0, copiedBytes: 0 }, owned.move());
  }

  async checkFork(directory: string): Promise<void> {
    const version = await installedVersion();
    await checkFork(directory, (shape) => originOf(this.acceleration, shape, version));
  }

  compressFork(directory: string, signal: AbortSignal): Promise<void> {
    return compressFork(directory, signal);
  }

  /** Starts a machine with the memory of a saved one. It waits for the device state. */
  async #startFrom(saved: SavedMachine, kind: "clone" | "fork", cpuWeight: number): Promise<QemuMachine> {
    using files = new DisposableStack();
    // Descriptors of its own: the saved machine may be disposed of during the start, and each reader needs its own offset
    // in the state.
    const memory = reopen(files, saved.descriptors.memory, "r");
    const state = reopen(files, saved.descriptors.state, "r");
    const preloaded = openOn(files, this.#options.assets.memory, "r");
    const owned = new AsyncDisposableStack();
    owned.use(saved.use());
    const { shape, root } = saved;
    const options = { root, owned, cpuWeight, template: { templateId: saved.id, templateBytes: saved.memoryBytes } };
    return await this.#start(shape, { kind }, [memory, state, preloaded], options);
  }

  async #load(machine: QemuMachine): Promise<void> {
    await machine.qmp.execute("migrate-incoming", { uri: `fd:${FIRST_FILE_FD + 1}` });
    await this.#migrated(machine.qmp);
  }

  #openAssets(files: DisposableStack): [number, number] {
    const { kernel, initramfs } = this.#options.assets;
    return [openOn(files, kernel, "r"), openOn(files, initramfs, "r")];
  }

  /** Starts a jailed QEMU and waits for its monitor. The machine takes ownership of `owned`. */
  async #start(
    shape: MachineShape,
    start: QemuStart,
    files: readonly number[],
    { root, owned, cpuWeight = CpuWeight.inUse, template = { templateBytes: 0 } }: StartOptions,
  ): Promise<QemuMachine> {
    await using stack = new AsyncDisposableStack();
    if (owned !== undefined) stack.use(owned);
    // A fork of the machine needs the root, however long the machine runs.
    stack.use(this.#roots.hold(root));
    const home = await openMachineHome(stack, this.#options, { shape, pidsMax: PIDS_MAX, cpuWeight });
    const { acceleration } = this;
    using listening = new DisposableStack();
    const listeners = await listenForQemu(listening, home.home);
    // These wait for QEMU, which accepts them before it reads a command. So a clone has its client before it loads its
    // state, and the port of its guest stays open, as it was when the template was saved.
    const monitor = stack.use(await connectToQemu(home.home, "monitor"));
    const channel = stack.use(await connectToQemu(home.home, "agent"));
    const process = launchVmm(stack, this.#options.assets, home, {
      root,
      devices: DEVICES[acceleration],
      // Writable disks are attached later. A template's machine writes nothing but its state.
      fileBytesMax: start.kind === "template" ? STATE_BYTES_MAX : this.#options.diskBytesMax,
      extraFds: [listeners.monitor, listeners.agent, ...files],
      environment: hasMemoryFile(start) ? CLONE_ENVIRONMENT : {},
      program: buildQemuArgs({ acceleration, shape, descriptors: { qmp: QMP_FD, agent: AGENT_FD }, start }),
    });
    listening.dispose();
    const qmp = await firstAnswer(PROGRAM_NAME, process, openMonitor(monitor, start));
    const pid = await vmmPid(PROGRAM_NAME, process, home);
    const forks = { program: this.#options.assets.memoryCopier, holdRoot: () => this.#roots.hold(root) };
    const { lease } = process;
    const record = { vmm: this.name, version: this.version, acceleration, root, ...template } as const;
    return new QemuMachine({ ...home, pid, shape, channel, qmp, process, lease, record, forks, owned: stack.move() });
  }

  /** Waits until QEMU has saved or loaded the state. @throws VmmError when that fails or takes too long */
  async #migrated(qmp: Qmp): Promise<void> {
    const deadline = performance.now() + MIGRATION_TIMEOUT_MS;
    for (;;) {
      const answer = (await qmp.execute("query-migrate")) as { status?: unknown; "error-desc"?: unknown } | null;
      if (answer?.status === "completed") return;
      if (answer?.status === "failed")
        throw new VmmError(`the state was not moved: ${textOf(answer["error-desc"]).slice(0, REASON_TEXT_MAX)}`);
      if (performance.now() > deadline) throw new VmmError("the state was not moved in time");
      await Bun.sleep(MIGRATION_POLL_MS);
    }
  }
}

/** Opens the monitor, with the capabilities that saving and loading a template need. A fork's state has no memory at all. */
async function openMonitor(monitor: SocketChannel, start: QemuStart): Promise<Qmp> {
  const qmp = await Qmp.open(monitor);
  if (start.kind === "cold" || start.kind === "fork") return qmp;
  const capabilities = ["x-ignore-shared", "events"].map((capability) => ({ capability, state: true }));
  await qmp.execute("migrate-set-capabilities", { capabilities });
  return qmp;
}

function openOn(stack: DisposableStack | AsyncDisposableStack, path: string, flags: string): number {
  const fd = openSync(path, flags);
  stack.defer(() => closeSync(fd));
  return fd;
}

/** A descriptor of the same file with an offset of its own. */
function reopen(stack: DisposableStack | AsyncDisposableStack, fd: number, flags: string): number {
  return openOn(stack, `/proc/self/fd/${fd}`, flags);
}

/** A descriptor that is closed by disposal, unless its owner was moved. */
function ownedDescriptor(fd: number) {
  const owned = new AsyncDisposableStack();
  owned.defer(() => closeSync(fd));
  return { fd, owned, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
