import { dlopen, FFIType, ptr, read } from "bun:ffi";
import { ftruncateSync } from "node:fs";

/*
 * The few Linux calls about descriptors that the runtime does not offer. They are synchronous
 * and quick. Constants and structures are those of x86_64.
 */
const libc = dlopen("libc.so.6", {
  memfd_create: { args: [FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  fcntl: { args: [FFIType.i32, FFIType.i32, FFIType.i64], returns: FFIType.i32 },
  sendmsg: { args: [FFIType.i32, FFIType.ptr, FFIType.i32], returns: FFIType.i64 },
  __errno_location: { args: [], returns: FFIType.ptr },
}).symbols;

const MFD_CLOEXEC = 0x1;
const MFD_ALLOW_SEALING = 0x2;
const F_ADD_SEALS = 1033;
const F_GET_SEALS = 1034;
const SOL_SOCKET = 1;
const SCM_RIGHTS = 1;
const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;
const EBUSY = 16;

/** Every seal: the contents and the size stay, and so does the sealing. */
export const SEALS_ALL = 0x1 | 0x2 | 0x4 | 0x8;
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

/** Anonymous memory of `sizeBytes` as a descriptor, which the caller closes. @throws SystemCallError */
export function createMemfd(name: string, sizeBytes: number): number {
  const fd = libc.memfd_create(ptr(Buffer.from(`${name}\0`)), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw new SystemCallError("memfd_create", errno());
  ftruncateSync(fd, sizeBytes);
  return fd;
}

/**
 * Makes the content and size of a memfd final, for whoever holds or opens it.
 * @throws SystemCallError when somebody keeps it mapped for writing
 */
export async function sealMemfd(fd: number): Promise<void> {
  for (let attempt = 1; libc.fcntl(fd, F_ADD_SEALS, SEALS_ALL) !== 0; attempt++) {
    const code = errno();
    if (code !== EBUSY || attempt === SEAL_ATTEMPTS_MAX) throw new SystemCallError("sealing", code);
    await Bun.sleep(SEAL_PAUSE_MS);
  }
}

/** Seals of a memfd, as a set of bits. */
export function sealsOf(fd: number): number {
  return libc.fcntl(fd, F_GET_SEALS, 0);
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
