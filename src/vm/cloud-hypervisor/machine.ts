import { join } from "node:path";
import type { ChildProcess } from "../../system/exec.ts";
import { LibcError } from "../../system/libc.ts";
import { withinTime } from "../../system/waiting.ts";
import type { SocketChannel } from "../agent/channel.ts";
import { JailedMachine, type JailedMachineParts } from "../jail/jailed-machine.ts";
import { placeDisk } from "../jail/machine-files.ts";
import { describeExit, VmmError } from "../machine-end.ts";
import { vcpuTime } from "../vcpu-time.ts";
import type { ByteChannel, Disk, Machine, MachineExit } from "../vmm.ts";
import type { CloudHypervisorApi } from "./api.ts";
import { AGENT_PORT, buildDiskConfig } from "./config.ts";
import { ConsoleTail } from "./console.ts";
import { type CloudHypervisorEvent, CloudHypervisorEventDecoder, CloudHypervisorEventError } from "./events.ts";
import { VsockChannel } from "./vsock.ts";

/** For reports. */
export const PROGRAM_NAME = "Cloud Hypervisor";
/** An agent that was saved listening accepts in milliseconds. */
const CONNECT_MS_MAX = 20_000;
/** The last lines of a console are on their way when it is asked for, or when the event of the guest's end is. */
const CONSOLE_SETTLE_MS = 50;
/**
 * Processor time in the host's kernel without as much in the guest. A boot that hardware runs stays below the
 * time; a KVM that emulates the guest's instructions leaves nearly nothing for the guest.
 */
const STUCK_KERNEL_MS = 2000;
const STUCK_RATIO = 20;

export interface CloudHypervisorMachineParts extends JailedMachineParts {
  /** the directory of the machine's sockets by a path that is short enough for their names */
  readonly socketDirectory: string;
  readonly api: CloudHypervisorApi;
  readonly events: SocketChannel;
}

/** A Cloud Hypervisor with its one machine. */
export class CloudHypervisorMachine extends JailedMachine implements Machine {
  readonly api: CloudHypervisorApi;
  readonly #child: ChildProcess;
  readonly #owned: AsyncDisposableStack;
  readonly #socketDirectory: string;
  readonly #events = new CloudHypervisorEventDecoder();
  #channel: VsockChannel | null = null;
  #console: ConsoleTail | null = null;
  #endingByHost = false;
  #disksCount = 0;

  constructor(parts: CloudHypervisorMachineParts) {
    super(parts, PROGRAM_NAME);
    this.api = parts.api;
    this.#socketDirectory = parts.socketDirectory;
    this.#child = parts.process;
    this.#owned = parts.owned;
    parts.events.onData((chunk) => this.#onEventBytes(chunk));
  }

  /** The agent's stream; there once the machine runs. */
  get channel(): ByteChannel {
    if (this.#channel === null) throw new Error("this machine has no channel yet");
    return this.#channel;
  }

  /** Reads the console from now on; its socket is there once the machine is created or restored. */
  async openConsole(): Promise<void> {
    this.#console ??= this.#owned.use(await ConsoleTail.open(join(this.#socketDirectory, "console.sock")));
  }

  /** Begins to connect to the agent, whose machine must not be saved before `closeChannel`. */
  openChannel(): void {
    this.#channel = this.#owned.use(VsockChannel.open(join(this.#socketDirectory, "vsock.sock"), AGENT_PORT));
  }

  /** @throws Error when the agent is not there in time, or the machine ends */
  async channelOpen(): Promise<void> {
    const connected = this.#channel?.connected ?? Promise.reject(new Error("this machine has no channel yet"));
    await withinTime(connected, CONNECT_MS_MAX, () => {
      throw new VmmError("the agent of a clone cannot be reached");
    });
  }

  closeChannel(): void {
    this.#channel?.close();
  }

  async attach(disks: readonly Disk[]): Promise<void> {
    for (const disk of disks) await placeDisk(this, disk);
    await using undo = new AsyncDisposableStack();
    for (const disk of disks) {
      const config = buildDiskConfig(disk.serial, disk.readOnly, this.#disksCount);
      await this.api.addDisk(config);
      this.#disksCount++;
      // A guest that may have found some of the disks must not mistake them for all.
      undo.defer(() => this.api.removeDevice(config.id).catch(() => undefined));
    }
    undo.move();
  }

  async pause(): Promise<void> {
    await this.api.pause();
  }

  async resume(): Promise<void> {
    await this.api.resume();
  }

  /** Ends the machine and its VMM by asking, which shows that both are well. @throws Error when they are not */
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
      // A VMM that is gone took its console with it, which is no reason to lose the report.
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

  #onEventBytes(chunk: Uint8Array | null): void {
    // The end of the stream comes with the end of the process, which tells more.
    if (chunk === null) return;
    try {
      for (const event of this.#events.push(chunk)) this.#onEvent(event);
    } catch (error) {
      if (!(error instanceof CloudHypervisorEventError)) throw error;
      void this.process.end("vmm_died", `Cloud Hypervisor broke its protocol: ${error.message}`);
    }
  }

  #onEvent({ source, event, properties }: CloudHypervisorEvent): void {
    // crash_loaded: a kernel that panicked goes on to write its own dump; there is none here.
    if (source === "guest" && event === "panic") {
      void this.process.end("guest_panic", `the guest kernel panicked (${(properties["event"] ?? "").slice(0, 32)})`);
    }
    if (source !== "vm") return;
    // The VMM is about to boot the guest again by itself: it has no switch against that.
    if (event === "rebooting") void this.process.end("guest_reset", "the guest reset itself");
    // Told for a guest that powered off and, just before it exits, by a VMM that gives up.
    if (event === "shutdown" && !this.#endingByHost) void this.#afterShutdown();
  }

  /** A VMM that gave up exits; after a guest's power-off it stays, by `--no-shutdown`. */
  async #afterShutdown(): Promise<void> {
    const exited = await withinTime(this.#child.exited, CONSOLE_SETTLE_MS, () => null);
    if (exited === null) await this.process.end("guest_shutdown", "the guest is off");
  }
}
