import { dlopen, FFIType } from "bun:ffi";

const libc = dlopen("libc.so.6", {
  syscall: { args: [FFIType.i64, FFIType.ptr, FFIType.u64, FFIType.u32], returns: FFIType.i64 },
}).symbols;

const SYS_LANDLOCK_CREATE_RULESET = 444;
const LANDLOCK_CREATE_RULESET_VERSION = 1;

/**
 * Lowest version that supports all of Cloud Hypervisor's rules (Linux 6.2; vmm/src/landlock.rs). Below it, Cloud
 * Hypervisor refuses to start a machine.
 */
export const LANDLOCK_VERSION_MIN = 3;

/** Version of the kernel's Landlock interface; 0 when the kernel lacks it or has it disabled. */
export function landlockVersion(): number {
  return Math.max(0, Number(libc.syscall(SYS_LANDLOCK_CREATE_RULESET, null, 0, LANDLOCK_CREATE_RULESET_VERSION)));
}

/** Whether Cloud Hypervisor can use Landlock on this host. */
export function hasLandlock(): boolean {
  return landlockVersion() >= LANDLOCK_VERSION_MIN;
}
