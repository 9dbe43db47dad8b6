import type { MachineShape } from "../vmm.ts";
import type { DiskConfig, RestoreConfig, VmConfig } from "./schema.ts";

/** Directory of the machine inside the jail. */
export const JAIL_DIRECTORY = "/vm";
/** Paths inside the jail. */
const JAIL = {
  directory: JAIL_DIRECTORY,
  kernel: "/vm/vmlinux",
  initramfs: "/vm/initramfs",
  /** directory in which the VMM creates its sockets; closed afterwards */
  run: "/vm/run",
  vsock: "/vm/run/vsock.sock",
  console: "/vm/run/console.sock",
  snapshot: "/vm/snapshot",
  fork: "/vm/fork",
} as const;

/** Files of a snapshot (docs/snapshot_restore.md). */
export const SNAPSHOT_FILES = ["config.json", "state.json", "memory-ranges"] as const;

/** Vsock port of the agent; vm-assets/agent/guest/vsock.c has the same number. */
export const AGENT_PORT = 1024;
/**
 * The vsock address of every guest. It may be the same for all: the device belongs to one VMM, whose socket identifies
 * the guest (docs/vsock.md). 0 to 2 are reserved.
 */
const GUEST_CID = 3;

/**
 * quiet: each byte on the console costs a VM exit. panic=1: a guest that panics resets after one second, in which the
 * console can be read; the reset discards it. cryptomgr.notests: self-tests of ciphers take an eighth of the boot. The
 * agent gets the arguments after `--`.
 */
const KERNEL_COMMAND_LINE = "quiet panic=1 cryptomgr.notests console=ttyS0 -- vsock";

/**
 * A PCI segment has 32 slots, one of them for its bridge (v54 gives the other segments that slot, too). The first
 * segment also holds rng, vsock and pvpanic. All segments exist from boot.
 */
const SEGMENT_DISKS_COUNT = 31;
const FIRST_SEGMENT_DISKS_COUNT = SEGMENT_DISKS_COUNT - 3;
const SEGMENTS_COUNT = 5;
/** Number of slots for disks: 128 layers, a scratch and some spare. */
export const DISKS_COUNT_MAX = FIRST_SEGMENT_DISKS_COUNT + (SEGMENTS_COUNT - 1) * SEGMENT_DISKS_COUNT;

/** Descriptors of the VMM. */
export interface CloudHypervisorDescriptors {
  /** a listening socket for the API */
  readonly api: number;
  /** the socket to which the VMM writes its events */
  readonly events: number;
}

/**
 * The command line. The machine is configured through the API, and so is Landlock, because the command line accepts it
 * only with a kernel. seccomp is on by default; it is given explicitly because the jail depends on it.
 */
export function buildCloudHypervisorArgs(program: string, descriptors: CloudHypervisorDescriptors): string[] {
  return [
    program,
    ...["--api-socket", `fd=${descriptors.api}`],
    ...["--event-monitor", `fd=${descriptors.events}`],
    ...["--seccomp", "true"],
    // The VMM stays after the guest powers off, so that this differs from a VMM that gave up.
    "--no-shutdown",
  ];
}

/** The machine's configuration, without disks. @throws Error when the memory is not a multiple of 1 MiB */
export function buildVmConfig(shape: MachineShape, landlock: boolean): VmConfig {
  if (!Number.isInteger(shape.memoryBytes / 1_048_576)) throw new Error("guest memory must be a multiple of 1 MiB");
  return {
    cpus: { boot_vcpus: shape.vcpus, max_vcpus: shape.vcpus, nested: false },
    memory: { size: shape.memoryBytes },
    payload: { kernel: JAIL.kernel, initramfs: JAIL.initramfs, cmdline: KERNEL_COMMAND_LINE },
    rng: { src: "/dev/urandom" },
    serial: { mode: "Socket", socket: JAIL.console },
    // The default would write this console to the VMM's standard output.
    console: { mode: "Off" },
    vsock: { cid: GUEST_CID, socket: JAIL.vsock, id: "agent" },
    pvpanic: true,
    platform: { num_pci_segments: SEGMENTS_COUNT },
    landlock_enable: landlock,
    // The rule for the directory covers later disks and the snapshot. Clones inherit the rules of their template.
    ...(landlock ? { landlock_rules: [{ path: JAIL.directory, access: "rw" }] } : {}),
  };
}

/** A disk at /vm/<serial>; `index` counts the machine's disks from 0. @throws Error when no slot is left */
export function buildDiskConfig(serial: string, readOnly: boolean, index: number): DiskConfig {
  if (index >= DISKS_COUNT_MAX) throw new Error("no address left for another disk");
  const beyondFirst = Math.floor((index - FIRST_SEGMENT_DISKS_COUNT) / SEGMENT_DISKS_COUNT);
  return {
    path: `${JAIL.directory}/${serial}`,
    readonly: readOnly,
    id: `disk-${serial}`,
    serial,
    pci_segment: index < FIRST_SEGMENT_DISKS_COUNT ? 0 : beyondFirst + 1,
    // If the VMM guessed the format from the contents, the guest could choose another format.
    image_type: "Raw",
    sparse: !readOnly,
  };
}

/** The only form of URL that the VMM accepts (vmm/src/migration/mod.rs). */
export const SNAPSHOT_URL = `file://${JAIL.snapshot}`;

/**
 * The VMM copies the memory, without the holes of its file. The other mode, on demand, saves nothing since v53: a thread
 * then reads all of the memory, holes included, and a snapshot is refused until it has (vmm/src/memory_manager.rs,
 * `uffd_handler_loop`).
 */
export const RESTORE_CONFIG: RestoreConfig = { source_url: SNAPSHOT_URL, memory_restore_mode: "Copy" };

/** The same for the snapshot that a fork is made from. */
export const FORK_URL = `file://${JAIL.fork}`;
