import type { MachineShape } from "../vmm.ts";
import type { DiskConfig, MemoryRestoreMode, RestoreConfig, VmConfig } from "./schema.ts";

/** Paths inside the jail. */
export const JAIL = {
  directory: "/vm",
  kernel: "/vm/vmlinux",
  initramfs: "/vm/initramfs",
  /** what the VMM may make files in, until its sockets are there */
  run: "/vm/run",
  vsock: "/vm/run/vsock.sock",
  console: "/vm/run/console.sock",
  snapshot: "/vm/snapshot",
} as const;

/** Files of a snapshot (docs/snapshot_restore.md). */
export const SNAPSHOT_FILES = ["config.json", "state.json", "memory-ranges"] as const;

/** Where the agent listens; vm-assets/agent/guest/vsock.c has the same number. */
export const AGENT_PORT = 1024;
/**
 * Every guest has the same address: the device lives in its own VMM, and what tells guests apart is the VMM's socket
 * (docs/vsock.md). 0 to 2 are taken.
 */
const GUEST_CID = 3;

/**
 * quiet: each byte of the console is an exit. panic=1: after it told of its panic a guest leaves a second to read its
 * console, which a reset would take with it. cryptomgr.notests: self-tests of ciphers are an eighth of the boot. What follows `--` is for the agent.
 */
const KERNEL_COMMAND_LINE = "quiet panic=1 cryptomgr.notests console=ttyS0 -- vsock";

/**
 * A PCI segment has 32 devices, one of them its bridge (v54 saves that beyond the first). The first has rng, vsock and
 * pvpanic beside it. All segments are made at boot.
 */
const SEGMENT_DISKS_COUNT = 31;
const FIRST_SEGMENT_DISKS_COUNT = SEGMENT_DISKS_COUNT - 3;
const SEGMENTS_COUNT = 5;
/** Disks that fit: 128 layers, a scratch and some more. */
export const DISKS_COUNT_MAX = FIRST_SEGMENT_DISKS_COUNT + (SEGMENTS_COUNT - 1) * SEGMENT_DISKS_COUNT;

/** Descriptors of the VMM. */
export interface CloudHypervisorDescriptors {
  /** a listening socket */
  readonly api: number;
  /** what the events are written to */
  readonly events: number;
}

/**
 * The command line. Everything about the machine comes through the API, Landlock too: as an option it is refused without
 * a kernel beside it. seccomp is on by default; it is named because nothing here is as meant without it.
 */
export function buildCloudHypervisorArgs(program: string, descriptors: CloudHypervisorDescriptors): string[] {
  return [
    program,
    ...["--api-socket", `fd=${descriptors.api}`],
    ...["--event-monitor", `fd=${descriptors.events}`],
    ...["--seccomp", "true"],
    // A guest that powers off leaves a VMM that can be asked, and so is told apart from a VMM that gave up.
    "--no-shutdown",
  ];
}

/** The machine, without disks. */
export function buildVmConfig(shape: MachineShape, landlock: boolean): VmConfig {
  if (!Number.isInteger(shape.memoryBytes / 1_048_576)) throw new Error("guest memory must be a multiple of 1 MiB");
  return {
    cpus: { boot_vcpus: shape.vcpus, max_vcpus: shape.vcpus, nested: false },
    memory: { size: shape.memoryBytes },
    payload: { kernel: JAIL.kernel, initramfs: JAIL.initramfs, cmdline: KERNEL_COMMAND_LINE },
    rng: { src: "/dev/urandom" },
    serial: { mode: "Socket", socket: JAIL.console },
    // By default this one writes to the VMM's standard output.
    console: { mode: "Off" },
    vsock: { cid: GUEST_CID, socket: JAIL.vsock, id: "agent" },
    pvpanic: true,
    platform: { num_pci_segments: SEGMENTS_COUNT },
    landlock_enable: landlock,
    // The directory covers the disks that come later, and the snapshot. Rules of a template are its clones' too.
    ...(landlock ? { landlock_rules: [{ path: JAIL.directory, access: "rw" as const }, USERFAULTFD_RULE] } : {}),
  };
}

/** What is not there has no effect. */
const USERFAULTFD_RULE = { path: "/dev/userfaultfd", access: "rw" } as const;

/** A disk as /vm/<serial>; `index` counts the machine's disks from 0. @throws Error when there is no slot left */
export function buildDiskConfig(serial: string, readOnly: boolean, index: number): DiskConfig {
  if (index >= DISKS_COUNT_MAX) throw new Error("no address left for another disk");
  const beyondFirst = Math.floor((index - FIRST_SEGMENT_DISKS_COUNT) / SEGMENT_DISKS_COUNT);
  return {
    path: `${JAIL.directory}/${serial}`,
    readonly: readOnly,
    id: `disk-${serial}`,
    serial,
    pci_segment: index < FIRST_SEGMENT_DISKS_COUNT ? 0 : beyondFirst + 1,
    // Guessing the format of what a guest wrote would let it choose another one.
    image_type: "Raw",
    sparse: !readOnly,
  };
}

export function buildRestoreConfig(mode: MemoryRestoreMode): RestoreConfig {
  return { source_url: SNAPSHOT_URL, memory_restore_mode: mode };
}

/** Only this form of URL is known (vmm/src/migration/mod.rs). */
export const SNAPSHOT_URL = `file://${JAIL.snapshot}`;
