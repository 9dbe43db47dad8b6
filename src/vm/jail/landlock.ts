import { dlopen, FFIType } from "bun:ffi";

const libc = dlopen("libc.so.6", {
  syscall: { args: [FFIType.i64, FFIType.ptr, FFIType.u64, FFIType.u32], returns: FFIType.i64 },
}).symbols;

const SYS_LANDLOCK_CREATE_RULESET = 444;
const LANDLOCK_CREATE_RULESET_VERSION = 1;

/**
 * Cloud Hypervisor's rules need all of this version (Linux 6.2; its vmm/src/landlock.rs), and it refuses to start a machine
 * below it.
 */
export const LANDLOCK_VERSION_MIN = 3;

/** Version of the kernel's Landlock interface; 0 where it is not built in or not enabled. */
export function landlockVersion(): number {
  return Math.max(0, Number(libc.syscall(SYS_LANDLOCK_CREATE_RULESET, null, 0, LANDLOCK_CREATE_RULESET_VERSION)));
}
