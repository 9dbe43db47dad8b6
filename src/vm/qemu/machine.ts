import { rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { withinTime } from "../../system/waiting.ts";
import type { SocketChannel } from "../agent/channel.ts";
import { JailedMachine, type JailedMachineParts } from "../jail/jailed-machine.ts";
import type { Lease } from "../jail/lease.ts";
import { placeDisk, printable, textOf } from "../jail/machine-files.ts";
import type { VmmProcess } from "../jail/machine-process.ts";
import { processIdentity } from "../jail/processes.ts";
import { VmmError } from "../machine-end.ts";
import type {
  ByteChannel,
  Disk,
  DiskCopy,
  DiskCopyOptions,
  ForkOptions,
  Machine,
  MachineExit,
  MachineRecord,
  PreparedFork,
} from "../vmm.ts";
import { CONSOLE_BYTES } from "./args.ts";
import { type AttachedDisks, type ForkContext, QemuFork } from "./fork.ts";
import { Mirror } from "./mirror.ts";
import { type Qmp, QmpClosedError, QmpError, type QmpEvent } from "./qmp.ts";
import { connectToQemu } from "./sockets.ts";

/**
 * Limit of instructions that KVM emulates before the agent greets. On real hardware KVM emulates only device accesses,
 * thousands in a boot. A KVM that reaches this number runs the guest a thousand times too slowly.
 */
const EMULATED_INSTRUCTIONS_MAX = 1_000_000;
const DETACH_MS_MAX = 10_000;
/** Name of the VMM, for reports. */
export const PROGRAM_NAME = "QEMU";
const SIGTERM_TEXT = `${PROGRAM_NAME} was ended by a signal`;
const SIGTERM_EXIT = { monitor: `${PROGRAM_NAME}, ended by a signal`, by: "signal" } as const;
/** Highest logical unit number of the SCSI controller. */
const LUN_MAX = 16_383;

export interface QemuMachineParts extends JailedMachineParts {
  readonly channel: SocketChannel;
  readonly qmp: Qmp;
  /** what the machine needs to be forked */
  readonly forks: Pick<ForkContext, "program" | "holdRoot">;
  readonly process: VmmProcess & { readonly pid: number };
  /** ties the launcher to this process; omitted when nothing does */
  readonly lease?: Lease;
  /** what stays the same in every record of this machine, and the state to continue from */
  readonly record: RecordBase;
}

/** The parts of a record that a machine cannot find out by itself. */
export type RecordBase = Pick<
  MachineRecord,
  "vmm" | "version" | "acceleration" | "root" | "templateBytes" | "templateId"
> &
  Partial<Pick<MachineRecord, "disks" | "nextLun" | "copiesCount">>;

/** A running QEMU. */
export class QemuMachine extends JailedMachine implements Machine {
  readonly qmp: Qmp;
  readonly #forks: QemuMachineParts["forks"];
  readonly #owned: AsyncDisposableStack;
  readonly #launcherPid: number;
  readonly #lease: Lease | null;
  readonly #record: RecordBase;
  #channel: SocketChannel;
  #pausing = false;
  #nextLun: number;
  /** Attached disks. */
  readonly #disks: { readonly serial: string; readonly node: string }[];
  /** Callbacks by device id, called when the guest has released the device. */
  readonly #deletions = new Map<string, () => void>();
  /** Event handlers of the disk copies. */
  readonly #listeners = new Set<(event: QmpEvent) => void>();
  #copiesCount: number;

  constructor(parts: QemuMachineParts) {
    super(parts, PROGRAM_NAME);
    const { record } = parts;
    this.#channel = parts.channel;
    this.qmp = parts.qmp;
    this.#forks = parts.forks;
    this.#owned = parts.owned;
    this.#launcherPid = parts.process.pid;
    this.#lease = parts.lease ?? null;
    this.#record = record;
    this.#disks = [...(record.disks ?? [])];
    this.#nextLun = record.nextLun ?? 0;
    this.#copiesCount = record.copiesCount ?? 0;
    parts.qmp.onEvent((event) => this.takeEvent(event));
  }

  get channel(): ByteChannel {
    return this.#channel;
  }

  async reconnect(pauseMs = 0): Promise<ByteChannel> {
    this.#channel.close();
    if (pauseMs > 0) await Bun.sleep(pauseMs);
    this.#channel = this.#owned.use(await connectToQemu(this.home, "agent"));
    return this.#channel;
  }

  async outlive(): Promise<void> {
    await this.#lease?.untie();
  }

  record(): MachineRecord {
    const { id, uid, shape } = this;
    const { vmm, version, acceleration, root, templateBytes, templateId } = this.#record;
    const [launcher, monitor] = [processIdentity(this.#launcherPid), processIdentity(this.pid)];
    if (launcher === null || monitor === null) throw new VmmError("the machine has ended");
    const state = { disks: [...this.#disks], nextLun: this.#nextLun, copiesCount: this.#copiesCount };
    const template = { templateBytes, templateId };
    return { vmm, version, acceleration, id, uid, shape, launcher, monitor, root, ...template, ...state };
  }

  async attach(disks: readonly Disk[]): Promise<void> {
    for (const disk of disks) await placeDisk(this, disk);
    // In one burst: QEMU processes the commands while the guest finds the first disk.
    await Promise.all(disks.flatMap((disk) => this.#plug(disk)));
  }

  /**
   * Attaches the disks of the machine of which this one is a copy, at the same addresses. The file of a writable disk is moved
   * into the machine's directory.
   */
  async attachAgain(disks: readonly Disk[], places: AttachedDisks): Promise<void> {
    if (disks.length !== places.length) throw new Error("a copy of a machine has other disks than the machine");
    for (const { serial, node } of places) {
      const disk = disks.find((candidate) => candidate.serial === serial);
      if (disk === undefined) throw new Error(`a copy of a machine lacks the disk ${serial}`);
      const path = disk.readOnly ? disk.path : join(this.directory, serial);
      if (!disk.readOnly) await rename(disk.path, path);
      this.#nextLun = lunOf(node);
      await this.attach([{ ...disk, path }]);
    }
  }

  #plug(disk: Disk): Promise<unknown>[] {
    const lun = this.#nextLun++;
    if (lun > LUN_MAX) throw new Error("no address left for another disk");
    const node = nodeOf(lun);
    this.#disks.push({ serial: disk.serial, node });
    const readOnly = { "read-only": disk.readOnly };
    // A flush by the guest need not reach the host's disk: the host syncs a scratch itself before it publishes it.
    const cache = { direct: false, "no-flush": !disk.readOnly };
    const common = { ...readOnly, cache, discard: disk.readOnly ? "ignore" : "unmap" };
    const file = { driver: "file", filename: `/vm/${disk.serial}`, ...common };
    return [
      this.qmp.execute("blockdev-add", { "node-name": node, driver: "raw", file, ...common }),
      this.qmp.execute("device_add", {
        driver: "scsi-hd",
        id: deviceOf(node),
        bus: "scsi0.0",
        channel: 0,
        "scsi-id": 0,
        lun,
        drive: node,
        serial: disk.serial,
        // A failed access stops the guest before the guest learns of it, so that no result can depend on a lost write. The
        // event BLOCK_IO_ERROR then ends the machine.
        werror: "stop",
        rerror: "stop",
      }),
    ];
  }

  async detach(): Promise<void> {
    const disks = this.#disks.splice(0);
    for (const { node } of disks) {
      const deleted = new Promise<void>((resolve) => this.#deletions.set(deviceOf(node), resolve));
      await this.qmp.execute("device_del", { id: deviceOf(node) });
      // The node stays in use until the device is gone.
      await withinTime(deleted, DETACH_MS_MAX, () => {
        throw new Error(`the guest keeps ${node}`);
      });
      this.#deletions.delete(deviceOf(node));
      await this.qmp.execute("blockdev-del", { "node-name": node });
    }
    for (const { serial } of disks) await rm(join(this.directory, serial));
  }

  async copyDisk(options: DiskCopyOptions): Promise<DiskCopy> {
    const disk = this.#disks.find(({ serial }) => serial === options.serial);
    if (disk === undefined) throw new Error(`no disk ${options.serial} is attached`);
    this.#copiesCount += 1;
    const listen = (handler: (event: QmpEvent) => void): Disposable => {
      this.#listeners.add(handler);
      return { [Symbol.dispose]: () => void this.#listeners.delete(handler) };
    };
    return await Mirror.open(this, { ...options, node: disk.node, name: `copy${this.#copiesCount}`, listen });
  }

  async prepareFork(options: ForkOptions): Promise<PreparedFork> {
    const end = (description: string) => this.process.end("vmm_died", description);
    const { acceleration } = this.#record;
    const context = { ...this.#forks, machine: this, acceleration, disks: [...this.#disks], end };
    return await QemuFork.prepare(context, options);
  }

  async pause(): Promise<void> {
    this.#pausing = true;
    await this.qmp.execute("stop");
  }

  async resume(): Promise<void> {
    await this.qmp.execute("cont");
    this.#pausing = false;
  }

  /** The last bytes of the guest's console. Reading consumes them. Empty when QEMU does not answer. */
  async console(): Promise<string> {
    try {
      const text = await this.qmp.execute("ringbuf-read", { device: "console", size: CONSOLE_BYTES });
      return typeof text === "string" ? printable(text) : "";
    } catch (error) {
      // Without an answer, the report is made without a console.
      if (error instanceof QmpError || error instanceof QmpClosedError) return "";
      throw error;
    }
  }

  async failure(): Promise<MachineExit | null> {
    // QEMU sends the events of the past before its answer.
    await this.qmp.execute("query-status").catch(ignoreClosed);
    return this.process.ending;
  }

  async stuck(): Promise<string | null> {
    const targets = { target: "vcpu", providers: [{ provider: "kvm" }] };
    // QEMU refuses this command where there is no KVM.
    const answer = await this.qmp.execute("query-stats", targets).catch(() => []);
    const count = emulatedInstructions(answer);
    if (count < EMULATED_INSTRUCTIONS_MAX) return null;
    return `this host's KVM emulates the guest one instruction at a time (${count} so far)`;
  }

  /** Handles an event of QEMU. */
  takeEvent(message: QmpEvent): void {
    const { event, data } = message;
    for (const listener of this.#listeners) listener(message);
    if (event === "BLOCK_IO_ERROR") {
      const operation = data["operation"] === "read" ? "read" : "write";
      if (data["nospace"] === true)
        void this.process.end("disk_full", `a ${operation} of the guest found no room on the host`);
      else void this.process.end("disk_error", `a ${operation} of the guest failed on the host`);
    }
    if (event === "GUEST_PANICKED") void this.process.end("guest_panic", "the guest kernel panicked");
    if (event === "SHUTDOWN") {
      if (data["reason"] === "guest-reset") void this.process.end("guest_reset", "the guest reset itself");
      else if (data["reason"] === "host-signal") void this.process.end("vmm_died", SIGTERM_TEXT, SIGTERM_EXIT);
      else void this.process.end("guest_shutdown", `the guest is off (${textOf(data["reason"]).slice(0, 64)})`);
    }
    if (event === "DEVICE_DELETED") this.#deletions.get(textOf(data["device"]))?.();
    if (event === "STOP" && !this.#pausing) void this.#checkStop();
  }

  /**
   * Handles a stop that the daemon did not request: either KVM could not continue the guest, or an end that has an event
   * of its own.
   */
  async #checkStop(): Promise<void> {
    const answer = await this.qmp.execute("query-status").catch(() => null);
    const status = (answer as { status?: unknown } | null)?.status;
    if (status === "internal-error")
      await this.process.end("vmm_died", "the processor emulation failed (internal-error)");
  }
}

/** QEMU's name of the disk at an address. */
function nodeOf(lun: number): string {
  return `disk${lun}`;
}

function lunOf(node: string): number {
  return Number(node.slice(nodeOf(0).length - 1));
}

function deviceOf(node: string): string {
  return `scsi-${node}`;
}

/** Ignores a closed monitor, because the machine's exit reports it. */
function ignoreClosed(error: unknown): void {
  if (!(error instanceof QmpClosedError)) throw error;
}

/** KVM's count of emulated instructions over all processors, in the answer to `query-stats`. */
export function emulatedInstructions(answer: unknown): number {
  let sum = 0;
  for (const processor of Array.isArray(answer) ? answer : []) {
    const stats: unknown = (processor as { stats?: unknown } | null)?.stats;
    for (const stat of Array.isArray(stats) ? stats : []) {
      const { name, value } = (stat ?? {}) as { name?: unknown; value?: unknown };
      if (name === "insn_emulation" && typeof value === "number") sum += value;
    }
  }
  return sum;
}
