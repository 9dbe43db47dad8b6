import { dlopen, FFIType, ptr, read } from "bun:ffi";
import { ftruncateSync } from "node:fs";
import {
  addSeals,
  F_SEAL_GROW,
  F_SEAL_SEAL,
  F_SEAL_SHRINK,
  F_SEAL_WRITE,
  getSeals,
  LibcError,
  MFD_ALLOW_SEALING,
  MFD_CLOEXEC,
  memfdCreate,
} from "../system/libc.ts";

/* Structures and constants are those of x86_64. */
const libc = dlopen("libc.so.6", {
  sendmsg: { args: [FFIType.i32, FFIType.ptr, FFIType.i32], returns: FFIType.i64 },
  __errno_location: { args: [], returns: FFIType.ptr },
}).symbols;

const SOL_SOCKET = 1;
const SCM_RIGHTS = 1;
const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;

/** Every seal: the contents and the size stay, and so does the sealing. */
export const SEALS_ALL = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
/** A VMM that has just exited may have its memory mapped for a moment longer. */
const SEAL_ATTEMPTS_MAX = 50;
const SEAL_PAUSE_MS = 2;

/** A call that the kernel refused. */
export class SystemCallError extends Error {
  override readonly name = "SystemCallError";
  readonly errno: number;

  constructor(call: string, errno: number) {
    super(`${call} failed with errno ${errno}`);
    this.errno = errno;
  }
}

function errno(): number {
  const location = libc.__errno_location();
  return location === null ? 0 : read.i32(location, 0);
}

/** Anonymous memory of `sizeBytes` as a descriptor, which the caller closes. @throws LibcError */
export function createMemfd(name: string, sizeBytes: number): number {
  const fd = memfdCreate(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ftruncateSync(fd, sizeBytes);
  return fd;
}

/**
 * Makes the content and size of a memfd final, for whoever holds or opens it.
 * @throws SystemCallError when somebody keeps it mapped for writing
 */
export async function sealMemfd(fd: number): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      addSeals(fd, SEALS_ALL);
      return;
    } catch (error) {
      if (!(error instanceof LibcError)) throw error;
      if (error.code !== "EBUSY" || attempt === SEAL_ATTEMPTS_MAX) throw new SystemCallError("sealing", error.errno);
    }
    await Bun.sleep(SEAL_PAUSE_MS);
  }
}

/** Seals of a memfd, as a set of bits. */
export function sealsOf(fd: number): number {
  return getSeals(fd);
}

/**
 * Sends `bytes` and a copy of `fd` over a unix socket that has nothing else under way.
 * @throws SystemCallError when the socket does not take all of it at once
 */
export function sendWithDescriptor(socket: number, bytes: Uint8Array, fd: number): void {
  const control = Buffer.alloc(24);
  control.writeBigUInt64LE(20n, 0);
  control.writeInt32LE(SOL_SOCKET, 8);
  control.writeInt32LE(SCM_RIGHTS, 12);
  control.writeInt32LE(fd, 16);
  const vector = Buffer.alloc(16);
  vector.writeBigUInt64LE(BigInt(ptr(bytes)), 0);
  vector.writeBigUInt64LE(BigInt(bytes.byteLength), 8);
  const message = Buffer.alloc(56);
  message.writeBigUInt64LE(BigInt(ptr(vector)), 16);
  message.writeBigUInt64LE(1n, 24);
  message.writeBigUInt64LE(BigInt(ptr(control)), 32);
  message.writeBigUInt64LE(BigInt(control.byteLength), 40);
  const sent = Number(libc.sendmsg(socket, ptr(message), MSG_DONTWAIT | MSG_NOSIGNAL));
  if (sent !== bytes.byteLength) throw new SystemCallError("sendmsg", sent < 0 ? errno() : 0);
}
