import { dlopen, FFIType } from "bun:ffi";

const F_GET_SEALS = 1034;

const libc = dlopen("libc.so.6", {
  fcntl: { args: [FFIType.i32, FFIType.i32, FFIType.i64], returns: FFIType.i32 },
}).symbols;

/** The seals of a memfd, as a bit set; -1 for any other file. */
export function sealsOf(fd: number): number {
  return libc.fcntl(fd, F_GET_SEALS, 0n);
}
