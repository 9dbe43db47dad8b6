import type { Cgroup } from "../cgroup/cgroup.ts";

/** Size of a machine; a template serves one shape. */
export interface MachineShape {
  readonly vcpus: number;
  /** guest memory in `bytes`, a multiple of 1 MiB */
  readonly memoryBytes: number;
}

export type Acceleration = "kvm" | "tcg";
export type VmmName = "qemu" | "cloud-hypervisor";

/** A raw disk to be attached to a running machine. */
export interface Disk {
  /** at most 20 bytes; `L00`, `L01`, … for layers, the lowest first, and `S` for the scratch */
  readonly serial: string;
  /** host path of a raw file on the file system of the machine's directory */
  readonly path: string;
  readonly readOnly: boolean;
}

/** Why a machine is gone. */
export interface MachineExit {
  readonly reason:
    | "killed"
    | "guest_panic"
    | "guest_reset"
    | "guest_shutdown"
    | "disk_full"
    | "disk_error"
    | "vmm_died";
  /** what a person should read: exit status or signal, the last lines of the VMM and the guest's console */
  readonly detail: string;
  /** the VMM and how it ended, in a few words, where nobody here ended it */
  readonly monitor?: string;
  /** a signal ended the VMM: one that it was sent, which says nothing about the VMM, or one that it crashed with */
  readonly by?: "signal" | "crash";
}

/** The agent's byte stream. Bytes that arrive before `onData` is set are kept. */
export interface ByteChannel {
  /** Queues `bytes`; resolves when the transport took them, rejects when the channel closed. */
  write(bytes: Uint8Array): Promise<void>;
  /** The one reader; `null` means that the channel closed. */
  onData(handler: (chunk: Uint8Array | null) => void): void;
  pause(): void;
  resume(): void;
}

/** One virtual machine: a jailed VMM process, its cgroup and its private directory. */
export interface Machine extends AsyncDisposable {
  readonly id: string;
  /** pid of the VMM itself on the host */
  readonly pid: number;
  readonly uid: number;
  readonly shape: MachineShape;
  /** private directory, which the VMM sees as /vm; removed by disposal */
  readonly directory: string;
  readonly cgroup: Cgroup;
  readonly channel: ByteChannel;
  /** settles when the VMM process is gone; never rejects */
  readonly exited: Promise<MachineExit>;
  /**
   * Hot-plugs disks in one burst. A read-only disk is hard-linked into the machine's directory; a
   * writable one must lie there already and is given to the machine's uid.
   */
  attach(disks: readonly Disk[]): Promise<void>;
  /**
   * Unplugs all disks, once the guest has let go of them, and removes them from the machine's directory. Missing where
   * a machine that was used is never used again.
   */
  detach?(): Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** The last bytes of the guest's console, for the report about one that does not answer; may be empty. */
  console(): Promise<string>;
  /** Why the machine will get nowhere although it runs, for one whose agent has not greeted yet; null: it may. */
  stuck(): Promise<string | null>;
  /**
   * Why the machine is ending although it may still answer; null: it is not. What its VMM told before this call counts,
   * so that a disk that lost a write of the guest is never taken for a good one.
   */
  failure(): Promise<MachineExit | null>;
  /** SIGKILL to the whole cgroup, then waits until it is empty; idempotent. */
  kill(): Promise<MachineExit>;
}

/** A saved machine of which copy-on-write clones are made. */
export interface Template extends AsyncDisposable {
  readonly shape: MachineShape;
  /** `milliseconds` since the epoch */
  readonly createdAt: number;
  /** what it takes of the host's memory, in `bytes`: the same for as long as it or a clone of it is there */
  readonly memoryBytes: number;
  /** a clone of it is there, which keeps its memory even when the template is disposed */
  readonly isInUse: boolean;
}

/** One virtual machine monitor with one acceleration. */
export interface Vmm {
  readonly name: VmmName;
  readonly version: string;
  readonly acceleration: Acceleration;
  /** True when the host has another VMM than the newest templates were saved with. Missing: it is never told. */
  readonly isOutdated?: boolean;
  /** Boots from cold with the embedded kernel and initramfs. */
  boot(shape: MachineShape): Promise<Machine>;
  /** Boots a machine whose memory can be saved. */
  bootForTemplate(shape: MachineShape): Promise<Machine>;
  /** Saves a machine of `bootForTemplate` that is idle, and ends it. */
  save(machine: Machine): Promise<Template>;
  /** @param cpuWeight its share of the processors, see `CpuWeight`; default is that of a machine in use */
  clone(template: Template, cpuWeight?: number): Promise<Machine>;
}
