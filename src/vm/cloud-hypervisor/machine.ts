import { link } from "node:fs/promises";
import { join } from "node:path";
import { LibcError } from "../../system/libc.ts";
import { withinTime } from "../../system/waiting.ts";
import { openHostCopy } from "../disk-copy.ts";
import { JailedMachine, type JailedMachineParts } from "../jail/jailed-machine.ts";
import type { Lease } from "../jail/lease.ts";
import { placeDisk } from "../jail/machine-files.ts";
import type { VmmProcess } from "../jail/machine-process.ts";
import { processIdentity } from "../jail/processes.ts";
import { describeExit, VmmError } from "../machine-end.ts";
import { vcpuTime } from "../vcpu-time.ts";
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
import type { CloudHypervisorApi } from "./api.ts";
import { AGENT_PORT, buildDiskConfig } from "./config.ts";
import { ConsoleTail } from "./console.ts";
import type { EventReader } from "./event-pipe.ts";
import { type CloudHypervisorEvent, CloudHypervisorEventDecoder, CloudHypervisorEventError } from "./events.ts";
import { CloudHypervisorFork } from "./fork.ts";
import { VsockChannel } from "./vsock.ts";

/** Name of the VMM, for reports. */
export const PROGRAM_NAME = "Cloud Hypervisor";
/** Time limit for connecting to a clone's agent, which normally accepts within milliseconds. */
const CONNECT_MS_MAX = 20_000;
/** Time for the last lines of the console to arrive. */
const CONSOLE_SETTLE_MS = 50;
/** Limit of the exit of a VMM that has given up its machine. */
const EXIT_MS_MAX = 5000;
/**
 * A guest is stuck when it has used this much time in the host's kernel, and a small fraction of it (STUCK_RATIO) in the
 * guest. A boot on real hardware stays below the time; a KVM that emulates instructions spends almost no time in the
 * guest.
 */
const STUCK_KERNEL_MS = 2000;
const STUCK_RATIO = 20;

export interface CloudHypervisorMachineParts extends JailedMachineParts {
  /** short path to the directory of the machine's sockets, because a socket's path is limited to 107 bytes */
  readonly socketDirectory: string;
  readonly api: CloudHypervisorApi;
  readonly events: EventReader;
  readonly process: VmmProcess & { readonly pid: number };
  /** ties the launcher to this process; omitted when nothing does */
  readonly lease?: Lease;
  /** To be called when the VMM has closed its events; omitted where its end is known otherwise. */
  readonly closed?: () => void;
  /** what stays the same in every record of this machine, and the state to continue from */
  readonly record: RecordBase;
  /** parent of the directories of fork points */
  readonly vmsDirectory: string;
  /** default: false */
  readonly hasNewStream?: boolean;
}

/** The parts of a record that a machine cannot find out by itself. */
export type RecordBase = Pick<MachineRecord, "version" | "root"> & Partial<Pick<MachineRecord, "disks" | "nextLun">>;

/** A Cloud Hypervisor with its machine. */
export class CloudHypervisorMachine extends JailedMachine implements Machine {
  readonly api: CloudHypervisorApi;
  readonly hasNewStream: boolean;
  readonly #vmsDirectory: string;
  readonly #child: CloudHypervisorMachineParts["process"];
  readonly #lease: Lease | null;
  readonly #record: RecordBase;
  readonly #owned: AsyncDisposableStack;
  readonly #socketDirectory: string;
  readonly #events = new CloudHypervisorEventDecoder();
  #channel: VsockChannel | null = null;
  #console: ConsoleTail | null = null;
  #endingByHost = false;
  /** Attached disks. */
  readonly #disks: { readonly serial: string; readonly node: string }[];
  /** number of the slots that disks have had */
  #slotsCount: number;

  constructor(parts: CloudHypervisorMachineParts) {
    super(parts, PROGRAM_NAME);
    this.api = parts.api;
    this.#socketDirectory = parts.socketDirectory;
    this.#child = parts.process;
    this.hasNewStream = parts.hasNewStream ?? false;
    this.#vmsDirectory = parts.vmsDirectory;
    this.#lease = parts.lease ?? null;
    this.#record = parts.record;
    this.#disks = [...(parts.record.disks ?? [])];
    this.#slotsCount = parts.record.nextLun ?? 0;
    this.#owned = parts.owned;
    parts.events.onData((chunk) => {
      if (chunk === null) parts.closed?.();
      else this.#onEventBytes(chunk);
    });
  }

  /** The agent's stream. @throws Error before `openChannel` */
  get channel(): ByteChannel {
    if (this.#channel === null) throw new Error("this machine has no channel yet");
    return this.#channel;
  }

  /** Starts to read the console. Its socket exists once the machine is created or restored. */
  async openConsole(): Promise<void> {
    this.#console ??= this.#owned.use(await ConsoleTail.open(join(this.#socketDirectory, "console.sock")));
  }

  /** Starts to connect to the agent. The machine must not be saved before `closeChannel`. */
  openChannel(): void {
    this.#channel = this.#owned.use(VsockChannel.open(join(this.#socketDirectory, "vsock.sock"), AGENT_PORT));
  }

  /** Waits for the connection to the agent. @throws VmmError when it takes too long, or when the machine ends */
  async channelOpen(): Promise<void> {
    const connected = this.#channel?.connected ?? Promise.reject(new Error("this machine has no channel yet"));
    await withinTime(connected, CONNECT_MS_MAX, () => {
      throw new VmmError("the agent of a clone cannot be reached");
    });
  }

  closeChannel(): void {
    this.#channel?.close();
  }

  async reconnect(): Promise<ByteChannel> {
    this.closeChannel();
    this.openChannel();
    await this.channelOpen();
    return this.channel;
  }

  async outlive(): Promise<void> {
    await this.#lease?.untie();
  }

  record(): MachineRecord {
    const { id, uid, shape } = this;
    const { version, root } = this.#record;
    const [launcher, monitor] = [processIdentity(this.#child.pid), processIdentity(this.pid)];
    if (launcher === null || monitor === null) throw new VmmError("the machine has ended");
    const state = { disks: [...this.#disks], nextLun: this.#slotsCount, copiesCount: 0, templateBytes: 0 };
    const vmm = "cloud-hypervisor";
    return { vmm, version, acceleration: "kvm", id, uid, shape, launcher, monitor, root, ...state };
  }

  async attach(disks: readonly Disk[]): Promise<void> {
    for (const disk of disks) await placeDisk(this, disk);
    await using undo = new AsyncDisposableStack();
    for (const disk of disks) {
      const config = buildDiskConfig(disk.serial, disk.readOnly, this.#slotsCount);
      await this.api.addDisk(config);
      this.#slotsCount++;
      this.#disks.push({ serial: disk.serial, node: config.id });
      // Unplug on failure, so that the guest does not take some of the disks for all.
      undo.defer(async () => {
        this.#disks.pop();
        await this.api.removeDevice(config.id).catch(() => undefined);
      });
    }
    undo.move();
  }

  /**
   * Places the disks of the machine of which this one is a copy, which its restored configuration has. The file of a writable
   * disk gets a second name in the machine's directory.
   */
  async placeAgain(disks: readonly Disk[]): Promise<void> {
    if (disks.length !== this.#disks.length) throw new Error("a copy of a machine has other disks than the machine");
    for (const { serial } of this.#disks) {
      const disk = disks.find((candidate) => candidate.serial === serial);
      if (disk === undefined) throw new Error(`a copy of a machine lacks the disk ${serial}`);
      const path = join(this.directory, serial);
      if (!disk.readOnly) await link(disk.path, path);
      await placeDisk(this, disk.readOnly ? disk : { ...disk, path });
    }
  }

  /** Cloud Hypervisor cannot copy a disk. It writes through the host's page cache, so the host can. */
  async copyDisk({ serial, ...options }: DiskCopyOptions): Promise<DiskCopy> {
    return await openHostCopy(join(this.directory, serial), options);
  }

  async prepareFork(options: ForkOptions): Promise<PreparedFork> {
    const end = (description: string) => this.process.end("vmm_died", description);
    const { version } = this.#record;
    const record = { version, disks: [...this.#disks], nextLun: this.#slotsCount };
    return await CloudHypervisorFork.prepare({ machine: this, record, vmsDirectory: this.#vmsDirectory, end }, options);
  }

  async pause(): Promise<void> {
    await this.api.pause();
  }

  async resume(): Promise<void> {
    await this.api.resume();
  }

  /** Ends the machine and its VMM through the API, which shows that both are healthy. @throws VmmError if they are not */
  async end(): Promise<void> {
    this.#endingByHost = true;
    await this.api.shutdown();
    await this.api.shutdownVmm();
    const status = await this.#child.exited;
    if (status.code !== 0) throw new VmmError(`Cloud Hypervisor did not end well: ${describeExit(status)}`);
  }

  protected override onExit(): void {
    this.#channel?.close();
  }

  async console(): Promise<string> {
    try {
      await this.openConsole();
    } catch (error) {
      // The console ended with its VMM; the report is made without it.
      if (error instanceof LibcError) return "";
      throw error;
    }
    await Bun.sleep(CONSOLE_SETTLE_MS);
    return this.#console?.text() ?? "";
  }

  async failure(): Promise<MachineExit | null> {
    return this.process.ending;
  }

  async stuck(): Promise<string | null> {
    const { guestMs, kernelMs } = await vcpuTime(this.pid);
    if (kernelMs < STUCK_KERNEL_MS || guestMs * STUCK_RATIO > kernelMs) return null;
    return `this host's KVM emulates the guest (${kernelMs} ms in the host's kernel, ${guestMs} ms in the guest)`;
  }

  #onEventBytes(chunk: Uint8Array): void {
    try {
      for (const event of this.#events.push(chunk)) this.takeEvent(event);
    } catch (error) {
      if (!(error instanceof CloudHypervisorEventError)) throw error;
      void this.process.end("vmm_died", `Cloud Hypervisor broke its protocol: ${error.message}`);
    }
  }

  /** Handles an event of the VMM. */
  takeEvent({ source, event, properties }: CloudHypervisorEvent): void {
    // crash_loaded, another value of this property, means that the guest writes a dump; guests here do not.
    if (source === "guest" && event === "panic") {
      void this.process.end("guest_panic", `the guest kernel panicked (${(properties["event"] ?? "").slice(0, 32)})`);
    }
    if (source !== "vm") return;
    // The VMM would boot the guest again, and has no option against it.
    if (event === "rebooting") void this.process.end("guest_reset", "the guest reset itself");
    // The VMM sends this when the guest powers off, and also just before it exits by itself.
    if (event === "shutdown" && !this.#endingByHost) void this.#afterShutdown();
  }

  /** A VMM that gave up answers nothing more and exits. After a power-off by the guest it stays, because of `--no-shutdown`. */
  async #afterShutdown(): Promise<void> {
    const answers = await this.api.ping().then(
      () => true,
      () => false,
    );
    if (!answers && (await withinTime(this.#child.exited, EXIT_MS_MAX, () => null)) !== null) return;
    await this.process.end("guest_shutdown", "the guest is off");
  }
}
