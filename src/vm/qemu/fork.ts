import { closeSync, constants, openSync } from "node:fs";
import type { Cgroup } from "../../cgroup/cgroup.ts";
import { withinTime } from "../../system/waiting.ts";
import { createMemfd } from "../descriptors.ts";
import { printable, textOf } from "../jail/machine-files.ts";
import { processIdentity } from "../jail/processes.ts";
import { VmmError } from "../machine-end.ts";
import type {
  Acceleration,
  DiskCopy,
  DiskCopyOptions,
  ForkOptions,
  ForkPoint,
  MachineExit,
  MachineRecord,
  MachineShape,
  PreparedFork,
} from "../vmm.ts";
import { loadableState } from "./device-state.ts";
import { type ForkFiles, writeFork } from "./fork-files.ts";
import { originOf } from "./fork-origin.ts";
import { MemoryCopy } from "./memory-copy.ts";
import { type Qmp, QmpClosedError } from "./qmp.ts";
import { SavedMachine, type SavedParts } from "./saved-machine.ts";

/** Writes the state of all devices, without the guest's memory, to a file. It needs no Xen. */
const SAVE_COMMAND = "xen-save-devices-state";
const SCRATCH_SERIAL = "S";
/** Limit of the work during the pause. A gigabyte of changed memory takes a third of a second. */
const PAUSE_MS_MAX = 20_000;
const VERSION_CHARACTERS_MAX = 200;
/** Limit of the continuation of the machine. */
const CONTINUE_MS_MAX = 5000;

/** QEMU's names of the attached disks, in the order of their attachment. */
export type AttachedDisks = MachineRecord["disks"];

/** The parts of a machine that a fork needs. */
export interface ForkedMachine {
  readonly pid: number;
  readonly shape: MachineShape;
  readonly cgroup: Pick<Cgroup, "pids">;
  readonly exited: Promise<MachineExit>;
  readonly qmp: Qmp;
  pause(): Promise<void>;
  resume(): Promise<void>;
  copyDisk(options: DiskCopyOptions): Promise<DiskCopy>;
}

export interface ForkContext {
  readonly machine: ForkedMachine;
  readonly disks: AttachedDisks;
  /** host path of the program that copies the memory */
  readonly program: string;
  /** Holds the root of the machine's QEMU. */
  readonly holdRoot: () => Disposable & { readonly path: string };
  readonly acceleration: Acceleration;
  /** Ends the machine, which cannot continue. */
  readonly end: (description: string) => Promise<void>;
}

/** A fork point of QEMU. */
export class QemuForkPoint extends SavedMachine implements ForkPoint {
  readonly disks: AttachedDisks;
  readonly pausedMs: number;
  readonly copiedBytes: number;
  readonly #files: ForkFiles;

  constructor(
    saved: SavedParts & ForkFiles & Pick<QemuForkPoint, "pausedMs" | "copiedBytes">,
    owned: AsyncDisposableStack,
  ) {
    super(saved, owned);
    this.#files = saved;
    this.disks = saved.disks;
    this.pausedMs = saved.pausedMs;
    this.copiedBytes = saved.copiedBytes;
  }

  get savedBytes(): number {
    return this.memoryBytes;
  }

  async save(directory: string): Promise<void> {
    using _used = this.use();
    using files = new DisposableStack();
    // The point may be disposed of meanwhile.
    const { memory, state } = this.descriptors;
    const [memoryFd, stateFd] = [memory, state].map((fd) => {
      const own = openSync(`/proc/self/fd/${fd}`, "r");
      files.defer(() => closeSync(own));
      return own;
    });
    const { origin, shape, disks } = this.#files;
    await writeFork(
      {
        ...{ origin, shape, disks },
        memory: { ...this.#files.memory, fd: memoryFd ?? -1 },
        state: { ...this.#files.state, fd: stateFd ?? -1 },
      },
      directory,
    );
  }
}

/** A fork of a running machine that is being prepared. */
export class QemuFork implements PreparedFork {
  readonly #context: ForkContext;
  readonly #machineType: string;
  readonly #version: string;
  readonly #owned: AsyncDisposableStack;
  readonly #memory: MemoryCopy;
  readonly #scratch: DiskCopy;
  readonly #state: StateFile;

  private constructor(
    context: ForkContext,
    parts: { machineType: string; version: string; memory: MemoryCopy; scratch: DiskCopy; state: StateFile },
    owned: AsyncDisposableStack,
  ) {
    this.#context = context;
    this.#machineType = parts.machineType;
    this.#version = parts.version;
    this.#memory = parts.memory;
    this.#scratch = parts.scratch;
    this.#state = parts.state;
    this.#owned = owned;
  }

  /** @throws VmmError when this QEMU cannot fork, or a copy fails; the reason of `signal` */
  static async prepare(context: ForkContext, { scratchPath, signal }: ForkOptions): Promise<QemuFork> {
    signal.throwIfAborted();
    const { machine, program } = context;
    const { qmp, pid, shape } = machine;
    await requireCommand(qmp);
    const [machineType, version, address] = [await machineTypeOf(qmp), await versionOf(qmp), await memoryAddress(qmp)];
    const identity = (await machine.cgroup.pids()).includes(pid) ? processIdentity(pid) : null;
    if (identity === null) throw new VmmError("the machine has ended");
    await using stack = new AsyncDisposableStack();
    const { memoryBytes } = shape;
    const disk = { serial: SCRATCH_SERIAL, path: scratchPath, pauseMsMax: PAUSE_MS_MAX, signal };
    const [memory, scratch] = await Promise.allSettled([
      MemoryCopy.open({ program, pid, address, memoryBytes, signal }).then((copy) => stack.use(copy)),
      machine.copyDisk(disk).then((copy) => stack.use(copy)),
    ]);
    // Another process may have got the pid before its memory was opened.
    if (processIdentity(pid)?.startTicks !== identity.startTicks) throw new VmmError("the machine has ended");
    if (memory.status === "rejected") throw memory.reason;
    if (scratch.status === "rejected") throw scratch.reason;
    const state = stack.use(await StateFile.open(qmp));
    return new QemuFork(
      context,
      { machineType, version, memory: memory.value, scratch: scratch.value, state },
      stack.move(),
    );
  }

  async take(): Promise<ForkPoint> {
    const { machine, disks, acceleration, holdRoot } = this.#context;
    const startedAt = performance.now();
    const copiedBytes = await this.#paused(async () => {
      await machine.qmp.execute(SAVE_COMMAND, { filename: this.#state.name, live: false });
      const [bytes] = await Promise.all([this.#memory.finish(), this.#scratch.finish()]);
      return bytes;
    });
    const pausedMs = performance.now() - startedAt;
    await using owned = new AsyncDisposableStack();
    const { path: root } = owned.use(holdRoot());
    const memory = await this.#memory.seal();
    owned.defer(() => closeSync(memory.fd));
    const state = await loadableState(this.#state.fd, this.#machineType);
    owned.defer(() => closeSync(state.fd));
    await this.#scratch.seal();
    await this[Symbol.asyncDispose]();
    const { shape } = machine;
    const origin = originOf(acceleration, shape, this.#version);
    return new QemuForkPoint({ origin, shape, root, memory, state, disks, pausedMs, copiedBytes }, owned.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  async #paused<T>(work: () => Promise<T>): Promise<T> {
    const { machine } = this.#context;
    await using _continued = { [Symbol.asyncDispose]: () => this.#continue() };
    await machine.pause();
    return await withinTime(work(), PAUSE_MS_MAX, () => {
      throw new VmmError("the machine was not copied in time");
    });
  }

  /** Continues the machine, or ends it with a reason. */
  async #continue(): Promise<void> {
    const { machine, end } = this.#context;
    try {
      await withinTime(machine.resume(), CONTINUE_MS_MAX, () => {
        throw new VmmError(`it did not continue within ${CONTINUE_MS_MAX} ms`);
      });
    } catch (error) {
      // A VMM that has died tells a better reason.
      if (error instanceof QmpClosedError && (await withinTime(machine.exited, CONTINUE_MS_MAX, () => null)) !== null)
        return;
      await end(`the machine could not continue after a fork: ${(error as Error).message}`);
    }
  }
}

/** A memfd that QEMU can write to under a name of its own, until disposal. */
class StateFile implements AsyncDisposable {
  readonly fd: number;
  readonly name: string;
  readonly #qmp: Qmp;
  readonly #set: number;

  private constructor(qmp: Qmp, fd: number, set: number) {
    this.#qmp = qmp;
    this.fd = fd;
    this.#set = set;
    this.name = `/dev/fdset/${set}`;
  }

  static async open(qmp: Qmp): Promise<StateFile> {
    using undo = new DisposableStack();
    const fd = createMemfd("device-state", 0);
    undo.defer(() => closeSync(fd));
    // QEMU compares the access mode of the descriptor with that of the use, so it must not be readable.
    using writable = new DisposableStack();
    const passed = openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY);
    writable.defer(() => closeSync(passed));
    const answer = (await qmp.sendDescriptor("add-fd", {}, passed)) as { "fdset-id"?: unknown } | null;
    const set = answer?.["fdset-id"];
    if (typeof set !== "number") throw new VmmError("QEMU did not accept the file for the state of its devices");
    undo.move();
    return new StateFile(qmp, fd, set);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    closeSync(this.fd);
    try {
      await this.#qmp.execute("remove-fd", { "fdset-id": this.#set });
    } catch (error) {
      // The descriptor has gone with the monitor.
      if (!(error instanceof QmpClosedError)) throw error;
    }
  }
}

/** @throws VmmError when this QEMU cannot save the state of its devices alone */
async function requireCommand(qmp: Qmp): Promise<void> {
  const commands = await qmp.execute("query-commands");
  const names = Array.isArray(commands) ? commands.map((command: { name?: unknown } | null) => command?.name) : [];
  if (!names.includes(SAVE_COMMAND)) throw new VmmError(`this QEMU cannot fork a machine: it has no ${SAVE_COMMAND}`);
}

/** The machine type without an alias, as QEMU writes it to a saved state. */
async function machineTypeOf(qmp: Qmp): Promise<string> {
  const answer = await qmp.execute("qom-get", { path: "/machine", property: "type" });
  const name = /^([a-z0-9_.-]{1,64})-machine$/.exec(textOf(answer).slice(0, 100))?.[1];
  if (name === undefined) throw new VmmError("QEMU did not name its machine type");
  return name;
}

/** The version of the running QEMU, as `--version` prints it; the host's program may be another one by now. */
async function versionOf(qmp: Qmp): Promise<string> {
  const answer = (await qmp.execute("query-version")) as { qemu?: Record<string, unknown>; package?: unknown } | null;
  const { major, minor, micro } = answer?.qemu ?? {};
  const number = [major, minor, micro].map((part) => (typeof part === "number" ? part : 0)).join(".");
  const name = printable(textOf(answer?.package));
  return `${number}${name === "" ? "" : ` (${name})`}`.slice(0, VERSION_CHARACTERS_MAX);
}

/** The address of the guest's memory in QEMU. A QEMU that lies only makes its own copies wrong. */
async function memoryAddress(qmp: Qmp): Promise<bigint> {
  const answer = await qmp.execute("human-monitor-command", { "command-line": "gpa2hva 0" });
  const address = /^Host virtual address for 0x0 \(m0\) is (0x[0-9a-f]{1,16})\s*$/.exec(
    textOf(answer).slice(0, 200),
  )?.[1];
  if (address === undefined) throw new VmmError("QEMU did not tell where the guest's memory is");
  return BigInt(address);
}
