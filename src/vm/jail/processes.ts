import { readFileSync } from "node:fs";
import type { ProcessIdentity } from "../vmm.ts";

/** Numbers of fields of /proc/PID/stat, counted from the one that follows the state: proc(5). */
const FLAGS_FIELD = 6;
const START_FIELD = 19;
/** PF_KTHREAD (include/linux/sched.h). */
const KERNEL_THREAD_FLAG = 0x20_0000;

/** Identity of a running process; null when there is none with this pid, or it has ended and was not reaped. */
export function processIdentity(pid: number): ProcessIdentity | null {
  const stat = readStat(pid);
  if (stat === null || stat.state === "Z" || stat.state === "X") return null;
  return { pid, startTicks: stat.field(START_FIELD) };
}

/**
 * Whether it is a thread of the kernel, which no program can be. KVM made one for each machine before Linux 6.14,
 * `kvm-nx-lpage-recovery`, in the control groups of the VMM (arch/x86/kvm/mmu/mmu.c, virt/kvm/kvm_main.c).
 */
export function isKernelThread(pid: number): boolean {
  return ((readStat(pid)?.field(FLAGS_FIELD) ?? 0) & KERNEL_THREAD_FLAG) !== 0;
}

function readStat(pid: number): { readonly state: string; field(number: number): number } | null {
  const stat = readProcessFile(pid, "stat");
  // The name is in parentheses and may contain any byte.
  const [state = "", ...fields] = stat?.slice(stat.lastIndexOf(")") + 2).split(" ") ?? [];
  return stat === null ? null : { state, field: (number) => Number(fields[number - 1]) };
}

/** A file of /proc/PID; null when there is no such process. */
export function readProcessFile(pid: number, name: string): string | null {
  try {
    return readFileSync(`/proc/${pid}/${name}`, "latin1");
  } catch (error) {
    // ESRCH: the process ended while its file was open.
    if (["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) return null;
    throw error;
  }
}
