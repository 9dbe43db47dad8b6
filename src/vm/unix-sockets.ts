import { dlopen, FFIType, ptr, read } from "bun:ffi";
import { closeSync } from "node:fs";
import { SystemCallError } from "./descriptors.ts";

/*
 * Unix sockets as plain descriptors: the runtime gives neither a listening one that another process accepts on,
 * nor a connected one that can be handed to a byte channel. Constants are those of x86_64.
 */
const libc = dlopen("libc.so.6", {
  socket: { args: [FFIType.i32, FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  bind: { args: [FFIType.i32, FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  listen: { args: [FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  connect: { args: [FFIType.i32, FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  __errno_location: { args: [], returns: FFIType.ptr },
}).symbols;

const AF_UNIX = 1;
const SOCK_STREAM = 1;
const SOCK_NONBLOCK = 0o4000;
const SOCK_CLOEXEC = 0o2000000;
const BACKLOG_COUNT = 16;
/** What `sun_path` holds beside its ending NUL. */
export const SOCKET_PATH_BYTES_MAX = 107;

/** Listens at `path` and gives the descriptor, which the caller closes. @throws SystemCallError */
export function listenUnix(path: string): number {
  return withSocket(SOCK_STREAM | SOCK_CLOEXEC, (fd) => {
    const address = socketAddress(path);
    if (libc.bind(fd, ptr(address), address.byteLength) !== 0) throw new SystemCallError("bind", errno());
    if (libc.listen(fd, BACKLOG_COUNT) !== 0) throw new SystemCallError("listen", errno());
  });
}

/**
 * Connects to `path` and gives the non-blocking descriptor, which the caller closes.
 * @throws SystemCallError when nobody listens there, or the listener's queue is full
 */
export function connectUnix(path: string): number {
  return withSocket(SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, (fd) => {
    const address = socketAddress(path);
    if (libc.connect(fd, ptr(address), address.byteLength) !== 0) throw new SystemCallError("connect", errno());
  });
}

function withSocket(type: number, prepare: (fd: number) => void): number {
  const fd = libc.socket(AF_UNIX, type, 0);
  if (fd < 0) throw new SystemCallError("socket", errno());
  try {
    prepare(fd);
  } catch (error) {
    closeSync(fd);
    throw error;
  }
  return fd;
}

function socketAddress(path: string): Buffer {
  const name = Buffer.from(path);
  if (name.byteLength > SOCKET_PATH_BYTES_MAX) throw new Error(`path of a socket is too long: ${path}`);
  const address = Buffer.alloc(2 + name.byteLength + 1);
  address.writeUInt16LE(AF_UNIX, 0);
  name.copy(address, 2);
  return address;
}

function errno(): number {
  const location = libc.__errno_location();
  return location === null ? 0 : read.i32(location, 0);
}
