import { dlopen, FFIType, ptr } from "bun:ffi";
import { closeSync, constants as files, openSync } from "node:fs";
import { constants } from "node:os";
import { checked, LibcError } from "./libc.ts";

/*
 * Unix sockets as plain descriptors. Bun offers no listening socket for another process to accept on, no connected one to
 * pass on, no datagram sockets, and no passing of descriptors. None of these calls blocks. Structures and constants are
 * those of x86_64.
 */
const libc = dlopen("libc.so.6", {
  socket: { args: [FFIType.i32, FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  bind: { args: [FFIType.i32, FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  listen: { args: [FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  connect: { args: [FFIType.i32, FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  sendto: {
    args: [FFIType.i32, FFIType.ptr, FFIType.u64, FFIType.i32, FFIType.ptr, FFIType.u32],
    returns: FFIType.i64,
  },
  sendmsg: { args: [FFIType.i32, FFIType.ptr, FFIType.i32], returns: FFIType.i64 },
}).symbols;

const AF_UNIX = 1;
const SOCK_STREAM = 1;
const SOCK_DGRAM = 2;
const SOCK_NONBLOCK = 0o4000;
const SOCK_CLOEXEC = 0o2000000;
const SOL_SOCKET = 1;
const SCM_RIGHTS = 1;
const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;
const BACKLOG_COUNT = 16;
/** Length of `sun_path` without the final NUL. */
export const SOCKET_PATH_BYTES_MAX = 107;

/**
 * A short path to a directory, because a socket's path is limited to `SOCKET_PATH_BYTES_MAX` and a data directory's is not.
 * Only this process can use it, until `stack` is disposed of.
 */
export function openSocketDirectory(stack: DisposableStack | AsyncDisposableStack, path: string): string {
  const fd = openSync(path, files.O_RDONLY | files.O_DIRECTORY | files.O_NOFOLLOW);
  stack.defer(() => closeSync(fd));
  return `/proc/self/fd/${fd}`;
}

/**
 * Listens at `path`. Returns the descriptor, which the caller closes.
 * @param backlog connections that may wait to be accepted
 * @throws LibcError
 */
export function listenUnix(path: string, backlog = BACKLOG_COUNT): number {
  return withSocket(SOCK_STREAM, (fd) => {
    const address = socketAddress(`${path}\0`);
    checked("bind", libc.bind(fd, ptr(address), address.byteLength));
    checked("listen", libc.listen(fd, backlog));
  });
}

/**
 * Connects to `path`. Returns a non-blocking descriptor, which the caller closes.
 * @throws LibcError when there is no listener, or the queue of the listener is full
 */
export function connectUnix(path: string): number {
  return withSocket(SOCK_STREAM | SOCK_NONBLOCK, (fd) => {
    const address = socketAddress(`${path}\0`);
    checked("connect", libc.connect(fd, ptr(address), address.byteLength));
  });
}

/** Creates a datagram socket. The caller closes the descriptor. @throws LibcError */
export function unixDatagramSocket(): number {
  return withSocket(SOCK_DGRAM, () => undefined);
}

/** Sends one datagram. A path that begins with "@" names an abstract socket. @throws LibcError */
export function sendDatagram(fd: number, path: string, data: Uint8Array): void {
  const address = socketAddress(path.replace(/^@/, "\0"));
  const flags = MSG_DONTWAIT | MSG_NOSIGNAL;
  checked("sendto", libc.sendto(fd, ptr(data), data.byteLength, flags, ptr(address), address.byteLength));
}

/**
 * Sends `bytes` with a copy of `fd` over a socket that has no other data to send.
 * @throws LibcError when the socket does not accept everything at once
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
  const sent = checked("sendmsg", libc.sendmsg(socket, ptr(message), MSG_DONTWAIT | MSG_NOSIGNAL));
  if (sent !== bytes.byteLength) throw new LibcError("sendmsg", constants.errno.EMSGSIZE);
}

function withSocket(type: number, prepare: (fd: number) => void): number {
  const fd = checked("socket", libc.socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  try {
    prepare(fd);
  } catch (error) {
    closeSync(fd);
    throw error;
  }
  return fd;
}

function socketAddress(name: string): Buffer {
  const bytes = Buffer.from(name);
  if (bytes.byteLength > SOCKET_PATH_BYTES_MAX + 1) throw new LibcError("sockaddr_un", constants.errno.ENAMETOOLONG);
  return Buffer.concat([Uint8Array.of(AF_UNIX, 0), bytes]);
}
