import type { Acceleration, MachineShape } from "../vmm.ts";

/** Listening sockets of QEMU by their purpose. */
export interface QemuDescriptors {
  readonly qmp: number;
  readonly agent: number;
}

/**
 * How a machine starts. A `cold` one cannot be saved, a `template` can. A `clone` maps a template's memory while it
 * starts, and waits for its device state. A `fork` does the same with those of a fork point, and stays paused.
 */
export type QemuStart =
  | { readonly kind: "cold"; readonly kernel: number; readonly initramfs: number }
  | { readonly kind: "template"; readonly kernel: number; readonly initramfs: number; readonly memory: number }
  | { readonly kind: "clone" | "fork" };

export interface QemuArgsOptions {
  readonly acceleration: Acceleration;
  readonly shape: MachineShape;
  readonly descriptors: QemuDescriptors;
  readonly start: QemuStart;
}

export const QEMU_PROGRAM = "/usr/bin/qemu-system-x86_64";
/** Size of the ring that keeps the end of the guest's console in QEMU, in `bytes`; a power of two. */
export const CONSOLE_BYTES = 16_384;

/**
 * quiet: each byte on the console costs at least one VM exit. panic=-1: a guest that panics resets at once, which QEMU
 * reports. cryptomgr.notests: self-tests of ciphers take an eighth of the boot. init_on_alloc=0: under emulation,
 * zeroing of allocations is most of the cost of a system call, and it protects the guest's kernel only from its own root.
 */
const KERNEL_COMMAND_LINE = "quiet panic=-1 cryptomgr.notests init_on_alloc=0 console=ttyS0";

/** A listening socket of QEMU serves one client after another. wait=off: the machine does not wait for the first. */
const LISTENING = "server=on,wait=off";

/** Cache of translated code per VM, in `MiB`. QEMU's default of 1 GiB would let a long run grow to that size. */
const TRANSLATION_CACHE_MIB = 64;

/**
 * Without the flags for fast string instructions: a kernel that sees them copies and clears every page with string
 * instructions, which emulation executes byte by byte.
 */
const EMULATED_PROCESSOR = "max,-erms,-fsrm";

const ACCELERATORS: Record<Acceleration, readonly string[]> = {
  kvm: ["-accel", "kvm", "-cpu", "host"],
  tcg: ["-accel", `tcg,tb-size=${TRANSLATION_CACHE_MIB}`, "-cpu", EMULATED_PROCESSOR],
};

/**
 * QEMU's command line. Everything that defines the machine is equal for a template and its clones, and in the same
 * order, because the saved state depends on it. It contains no host path: files are passed as descriptors.
 */
export function buildQemuArgs({ acceleration, shape, descriptors, start }: QemuArgsOptions): string[] {
  const memoryMiB = shape.memoryBytes / 1_048_576;
  if (!Number.isInteger(memoryMiB)) throw new Error("guest memory must be a multiple of 1 MiB");
  return [
    QEMU_PROGRAM,
    ...["-nodefaults", "-no-user-config", "-display", "none"],
    // A panic or reset stops the machine, so that its console can be read before QEMU is killed.
    ...["-action", "panic=pause,reboot=shutdown,shutdown=pause"],
    ...ACCELERATORS[acceleration],
    ...["-smp", `${shape.vcpus}`, "-m", `${memoryMiB}`],
    ...["-machine", "q35,smm=off,sata=off,usb=off,vmport=off,i8042=off,smbus=off,memory-backend=m0"],
    ...["-object", memoryBackend(start, memoryMiB)],
    ...bootArgs(start),
    ...["-chardev", `socket,id=qmp,fd=${descriptors.qmp},${LISTENING}`, "-mon", "chardev=qmp,mode=control"],
    ...["-chardev", `ringbuf,id=console,size=${CONSOLE_BYTES}`, "-device", "isa-serial,chardev=console"],
    ...["-chardev", `socket,id=agent,fd=${descriptors.agent},${LISTENING}`],
    ...["-device", "virtio-serial-pci,id=serial0,addr=2.0,max_ports=2"],
    ...["-device", "virtserialport,bus=serial0.0,chardev=agent,name=agent"],
    ...["-device", "virtio-scsi-pci,id=scsi0,addr=3.0"],
    ...["-device", "pvpanic-pci,addr=4.0"],
    ...["-device", "virtio-balloon-pci,free-page-reporting=on,addr=5.0"],
    ...["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
    ...(hasMemoryFile(start) ? ["-incoming", "defer"] : []),
    // The state of a forked machine says that it was running.
    ...(start.kind === "fork" ? ["-S"] : []),
  ];
}

/** True for a machine that maps a memory file and loads a state. */
export function hasMemoryFile(start: QemuStart): start is QemuStart & { readonly kind: "clone" | "fork" } {
  return start.kind === "clone" || start.kind === "fork";
}

/** share=on writes the memory of a template's machine to the file of the descriptor. */
function memoryBackend(start: QemuStart, memoryMiB: number): string {
  if (start.kind !== "template") return `memory-backend-ram,id=m0,size=${memoryMiB}M`;
  return `memory-backend-file,id=m0,size=${memoryMiB}M,mem-path=/proc/self/fd/${start.memory},share=on`;
}

function bootArgs(start: QemuStart): string[] {
  if (hasMemoryFile(start)) return [];
  const { kernel, initramfs } = start;
  const files = ["-kernel", `/proc/self/fd/${kernel}`, "-initrd", `/proc/self/fd/${initramfs}`];
  return [...files, "-append", KERNEL_COMMAND_LINE];
}
