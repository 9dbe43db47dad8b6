import type { Cgroup } from "../cgroup/cgroup.ts";

/** Size of a machine. A template serves one shape. */
export interface MachineShape {
  readonly vcpus: number;
  /** guest memory in `bytes`, a multiple of 1 MiB */
  readonly memoryBytes: number;
}

export type Acceleration = "kvm" | "tcg";
export type VmmName = "qemu" | "cloud-hypervisor";

/** A raw disk to attach to a running machine. */
export interface Disk {
  /** at most 20 bytes: `L00`, `L01`, … for layers, lowest first, and `S` for the scratch */
  readonly serial: string;
  /** host path of a raw file, on the file system of the machine's directory */
  readonly path: string;
  readonly readOnly: boolean;
}

/** Why a machine ended. */
export interface MachineExit {
  readonly reason:
    | "killed"
    | "guest_panic"
    | "guest_reset"
    | "guest_shutdown"
    | "disk_full"
    | "disk_error"
    | "vmm_died";
  /** the description for messages: exit status or signal, and the last lines of the VMM and of the guest's console */
  readonly detail: string;
  /** the VMM and how it ended, in a few words; absent when the daemon ended it */
  readonly monitor?: string;
  /** set when a signal ended the VMM: "signal" for one that another process sent, "crash" for a fault of the VMM */
  readonly by?: "signal" | "crash";
}

/** The byte stream to the agent. Bytes that arrive before `onData` is called are kept. */
export interface ByteChannel {
  /** Queues `bytes`. Resolves when the transport has accepted them, rejects when the channel is closed. */
  write(bytes: Uint8Array): Promise<void>;
  /** Sets the only reader. The handler gets `null` when the channel closes. */
  onData(handler: (chunk: Uint8Array | null) => void): void;
  pause(): void;
  resume(): void;
}

/** A copy that is being made of a disk: the disk's content at one instant. Disposal stops the copying. */
export interface DiskCopy extends AsyncDisposable {
  /**
   * Makes the copy equal to the disk. Nothing may write to the disk during the call (see `Agent.quiesce`), so writers in
   * the guest wait for it. `Machine.copyDisk` has done all work that could be done earlier.
   * @throws DiskCopyLateError when it takes longer than allowed; VmmError when the copy fails
   */
  finish(): Promise<void>;
  /** To be called after `finish`: ensures that no other process can open the file or has it open for writing. */
  seal(): Promise<void>;
}

export interface DiskCopyOptions {
  /** serial of an attached, writable disk */
  readonly serial: string;
  /** path of the copy, on the file system of the machine's directory; the file must not exist, and the caller removes it */
  readonly path: string;
  /** limit of the duration of `finish`, in `milliseconds` */
  readonly pauseMsMax: number;
  readonly signal: AbortSignal;
}

/** A process of this boot of the host. The kernel gives a pid again, but not with the same start time. */
export interface ProcessIdentity {
  readonly pid: number;
  /** start time in clock ticks since the host's boot: field 22 of /proc/PID/stat */
  readonly startTicks: number;
}

/** The plain data from which another process opens a running machine (`openQemuMachine`, `openCloudHypervisorMachine`). */
export interface MachineRecord {
  readonly vmm: VmmName;
  readonly version: string;
  readonly acceleration: Acceleration;
  readonly id: string;
  readonly uid: number;
  readonly shape: MachineShape;
  readonly launcher: ProcessIdentity;
  /** the process of the VMM */
  readonly monitor: ProcessIdentity;
  /** host path of the VMM's root directory, which must stay as long as the machine */
  readonly root: string;
  /** attached disks with the VMM's names of them */
  readonly disks: readonly { readonly serial: string; readonly node: string }[];
  /** address of the next disk */
  readonly nextLun: number;
  /** number of the disk copies so far, which their names contain */
  readonly copiesCount: number;
  /** host memory that the machine shares with others of the same template or fork, in `bytes`; 0 when it booted from cold */
  readonly templateBytes: number;
  /** names that memory; absent: the machine booted from cold */
  readonly templateId?: string | undefined;
}

export interface ForkOptions {
  /** path of the copy of the writable disk, as in `DiskCopyOptions` */
  readonly scratchPath: string;
  /** ends the preparation only */
  readonly signal: AbortSignal;
}

/** A fork that is being prepared: the machine runs while its memory and its writable disk are copied. Disposal gives up. */
export interface PreparedFork extends AsyncDisposable {
  /**
   * Pauses the machine, copies what has changed since the preparation, and continues the machine. To be called once, during
   * a hold of the agent. Whether or not it succeeds, the machine runs again within seconds or ends with a reason.
   * @throws VmmError when the copy fails
   */
  take(): Promise<ForkPoint>;
}

/**
 * Memory, devices and writable disk of a running machine at one instant. Copies of the machine start from it. It may be
 * disposed of while copies use it. The copy of the disk is not part of it: the caller owns and removes that file.
 */
export interface ForkPoint extends AsyncDisposable {
  readonly shape: MachineShape;
  /** host memory that it takes until it and its last copy are gone, in `bytes`; constant */
  readonly memoryBytes: number;
  /** resolves when it and its last copy are gone, so that its memory is free again */
  readonly released: Promise<void>;
  /** time for which the machine was paused, in `milliseconds`; 0 for one that was loaded */
  readonly pausedMs: number;
  /** guest memory that was copied, in `bytes`; 0 for one that was loaded */
  readonly copiedBytes: number;
  /** room that `save` needs on the disk at most, in `bytes`, apart from the description */
  readonly savedBytes: number;
  /**
   * Writes memory and devices to files of root's in `directory`, which must exist and is synced. The files hold all secrets of
   * the guest. All names but `memory`, `memory.zst`, `state` and `fork.json` are the caller's.
   */
  save(directory: string): Promise<void>;
}

/** One virtual machine: a jailed VMM process with its cgroup and its private directory. */
export interface Machine extends AsyncDisposable {
  readonly id: string;
  /** pid of the VMM on the host */
  readonly pid: number;
  readonly uid: number;
  readonly shape: MachineShape;
  /** private directory, which the VMM sees as /vm; disposal removes it */
  readonly directory: string;
  readonly cgroup: Cgroup;
  readonly channel: ByteChannel;
  /**
   * True for a copy of a forked machine whose stream to the agent is not that of the forked machine: the agent has lost its
   * host and waits for the next one. There is no `channel` before `reconnect`. See `continueCopy`.
   */
  readonly hasNewStream?: boolean;
  /** resolves when the VMM's process has ended; never rejects */
  readonly exited: Promise<MachineExit>;
  /**
   * Hot-plugs disks in one burst. A read-only disk is hard-linked into the machine's directory. A writable disk must
   * already be there; the machine's uid becomes its owner.
   */
  attach(disks: readonly Disk[]): Promise<void>;
  /**
   * Unplugs all disks, once the guest has unmounted them, and removes them from the machine's directory. Omitted by VMMs
   * whose used machines are never used again.
   */
  detach?(): Promise<void>;
  /**
   * Starts to copy a disk while the guest continues to write to it. Resolves when `DiskCopy.finish` can be called. The copy
   * keeps the holes of the disk.
   * @throws DiskCopyLateError when `finish` would take too long; VmmError when the copy fails; the reason of `signal`
   */
  copyDisk(options: DiskCopyOptions): Promise<DiskCopy>;
  /**
   * Copies memory and writable disk while the guest runs. Resolves when `PreparedFork.take` can be called. Omitted by
   * VMMs that cannot fork.
   * @throws VmmError when the copy fails; the reason of `signal`
   */
  prepareFork?(options: ForkOptions): Promise<PreparedFork>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** The last bytes of the guest's console, for reports; may be empty. */
  console(): Promise<string>;
  /** The reason why a running machine will never greet; null when none is known. */
  stuck(): Promise<string | null>;
  /**
   * The reason why the machine is about to end although it may still answer; null when it is not about to end. Takes into account everything that
   * the VMM reported before this call, so that a disk that lost a write of the guest is never accepted.
   */
  failure(): Promise<MachineExit | null>;
  /** Sends SIGKILL to the whole cgroup and waits until it is empty. Idempotent. */
  kill(): Promise<MachineExit>;
  /**
   * Lets the machine outlive this process; until this has resolved, the kernel ends the machine together with it. Omitted,
   * like `record` and `reconnect`, by VMMs whose machines no other process can open.
   * @throws VmmError when the machine has ended
   */
  outlive?(): Promise<void>;
  /** The record from which another process opens this machine. It changes when disks are attached, detached or copied. */
  record?(): MachineRecord;
  /**
   * Closes the stream to the agent and connects again: `channel` is then the result.
   * @param pauseMs time without a connection, for agents that could miss a short one; default: 0
   * @throws LibcError when the VMM is gone
   */
  reconnect?(pauseMs?: number): Promise<ByteChannel>;
}

/** A saved machine, from which copy-on-write clones are made. */
export interface Template extends AsyncDisposable {
  readonly shape: MachineShape;
  /** `milliseconds` since the epoch */
  readonly createdAt: number;
  /** host memory that it takes, in `bytes`; constant until the template and its last clone are gone */
  readonly memoryBytes: number;
  /** true while it has clones, which keep its memory even after the template is disposed of */
  readonly isInUse: boolean;
}

/** One virtual machine monitor with one acceleration. */
export interface Vmm {
  readonly name: VmmName;
  readonly version: string;
  readonly acceleration: Acceleration;
  /** True when the host's VMM is not the one that saved the newest templates. Omitted when the VMM cannot know. */
  readonly isOutdated?: boolean;
  /** Boots a machine from cold with the embedded kernel and initramfs. */
  boot(shape: MachineShape): Promise<Machine>;
  /** Boots a machine that can be saved. */
  bootForTemplate(shape: MachineShape): Promise<Machine>;
  /** Saves an idle machine of `bootForTemplate`, and ends it. */
  save(machine: Machine): Promise<Template>;
  /** @param cpuWeight see `CpuWeight`; default: the weight of a machine in use */
  clone(template: Template, cpuWeight?: number): Promise<Machine>;
  /**
   * A copy of a forked machine, which runs no instruction before `Machine.resume`. Omitted by VMMs that cannot fork.
   * @param disks the disks of the forked machine, in any order, with the same serials. The file of the writable one is
   *   moved into the directory of the copy.
   * @throws VmmError when the copy cannot be made, also after the fork point's disposal
   */
  cloneFork?(point: ForkPoint, disks: readonly Disk[], cpuWeight?: number): Promise<Machine>;
  /**
   * Reads a fork point that `ForkPoint.save` wrote, also after `compressFork`.
   * @throws NotResumableError when another VMM or host saved it, or the files are damaged
   */
  loadFork?(directory: string): Promise<ForkPoint>;
  /** Checks what can be checked without reading the memory. @throws as `loadFork` does */
  checkFork?(directory: string): Promise<void>;
  /**
   * Compresses the memory of a fork point that `ForkPoint.save` wrote. It can be loaded at any time meanwhile.
   * @throws the reason of `signal`; nothing has changed then
   */
  compressFork?(directory: string, signal: AbortSignal): Promise<void>;
}
