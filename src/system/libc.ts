import { dlopen, FFIType, ptr, read } from "bun:ffi";
import { closeSync } from "node:fs";
import { constants } from "node:os";

/**
 * Functions of the C library that neither Bun nor node:fs offers. They block the event loop as long as the kernel takes, so
 * use them for short work only. Constants are those of x86_64 Linux.
 */
const { symbols: libc } = dlopen("libc.so.6", {
  __errno_location: { args: [], returns: FFIType.ptr },
  memfd_create: { args: [FFIType.cstring, FFIType.u32], returns: FFIType.i32 },
  mkfifo: { args: [FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  fcntl: { args: [FFIType.i32, FFIType.i32, FFIType.i64], returns: FFIType.i32 },
  madvise: { args: [FFIType.u64, FFIType.u64, FFIType.i32], returns: FFIType.i32 },
  flock: { args: [FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  socket: { args: [FFIType.i32, FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  connect: { args: [FFIType.i32, FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  unshare: { args: [FFIType.i32], returns: FFIType.i32 },
  setns: { args: [FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  ioctl: { args: [FFIType.i32, FFIType.u64, FFIType.ptr], returns: FFIType.i32 },
  lseek: { args: [FFIType.i32, FFIType.i64, FFIType.i32], returns: FFIType.i64 },
  copy_file_range: {
    args: [FFIType.i32, FFIType.ptr, FFIType.i32, FFIType.ptr, FFIType.u64, FFIType.u32],
    returns: FFIType.i64,
  },
});

const errnoNames = new Map(Object.entries(constants.errno).map(([name, value]) => [value, name]));

/** A failed call of the C library. `code` is the name that node:fs would use, such as "EXDEV". */
export class LibcError extends Error {
  override readonly name = "LibcError";
  readonly syscall: string;
  readonly errno: number;
  readonly code: string;

  constructor(syscall: string, errno: number) {
    const code = errnoNames.get(errno) ?? `errno ${errno}`;
    super(`${syscall}: ${code}`);
    this.syscall = syscall;
    this.errno = errno;
    this.code = code;
  }
}

/** Must be called directly after the failed call. */
function errno(): number {
  const location = libc.__errno_location();
  if (location === null) throw new Error("the C library gave no address of errno");
  return read.i32(location, 0);
}

/** Returns the result of a call. @throws LibcError when the call failed */
export function checked(syscall: string, result: number | bigint): number {
  if (result < 0) throw new LibcError(syscall, errno());
  return Number(result);
}

export const MFD_CLOEXEC = 1;
export const MFD_ALLOW_SEALING = 2;

/** Creates an anonymous file in memory. `name` is visible only in /proc. The caller closes the descriptor. */
export function memfdCreate(name: string, flags: number): number {
  return checked("memfd_create", libc.memfd_create(Buffer.from(`${name}\0`), flags));
}

/** Makes a named pipe. @throws LibcError */
export function makeFifo(path: string, mode: number): void {
  const name = Buffer.from(`${path}\0`);
  checked("mkfifo", libc.mkfifo(ptr(name), mode));
}

export const F_SEAL_SEAL = 1;
export const F_SEAL_SHRINK = 2;
export const F_SEAL_GROW = 4;
export const F_SEAL_WRITE = 8;
const F_ADD_SEALS = 1033;

/** Seals a memfd permanently. @throws LibcError EBUSY when `seals` has F_SEAL_WRITE and a writable shared mapping exists */
export function addSeals(fd: number, seals: number): void {
  checked("fcntl", libc.fcntl(fd, F_ADD_SEALS, seals));
}

const LOCK_EX = 2;
const LOCK_NB = 4;

/** Locks an open file for this process until it is closed. Returns false when another process has the lock. */
export function tryLock(fd: number): boolean {
  if (libc.flock(fd, LOCK_EX | LOCK_NB) === 0) return true;
  const error = new LibcError("flock", errno());
  if (error.code === "EWOULDBLOCK" || error.code === "EAGAIN") return false;
  throw error;
}

const F_SETLEASE = 1024;
const F_RDLCK = 0;
const F_UNLCK = 2;

/**
 * Whether any process has a file open for writing or mapped writable. `fd` must be open for reading only, and the file must
 * belong to this process' user. No process may open the file for writing during the call.
 * @throws LibcError EINVAL when the file system does not support this
 */
export function hasWriters(fd: number): boolean {
  // The kernel grants a read lease only on files without writers.
  if (libc.fcntl(fd, F_SETLEASE, F_RDLCK) < 0) {
    const error = new LibcError("fcntl", errno());
    if (error.code === "EAGAIN" || error.code === "EWOULDBLOCK") return true;
    throw error;
  }
  checked("fcntl", libc.fcntl(fd, F_SETLEASE, F_UNLCK));
  return false;
}

const MADV_PAGEOUT = 21;

/**
 * Pages out `[start, start + length)`. The kernel reads the pages again when they are needed.
 * @throws LibcError EINVAL when the kernel does not support this
 */
export function pageOut(start: bigint, length: bigint): void {
  checked("madvise", libc.madvise(start, length, MADV_PAGEOUT));
}

const MADV_DONTNEED = 4;

/**
 * Unmaps the pages of `[start, start + length)` from this process. Use it only for file mappings that were never written
 * to, because changes are lost.
 */
export function dropPages(start: bigint, length: bigint): void {
  checked("madvise", libc.madvise(start, length, MADV_DONTNEED));
}

const SEEK_DATA = 3;
const SEEK_HOLE = 4;

/** Offset of the next data at or after `offset`; null when there is none before the end. */
export function seekData(fd: number, offset: number): number | null {
  const result = libc.lseek(fd, offset, SEEK_DATA);
  if (result >= 0) return Number(result);
  const code = errno();
  if (code === constants.errno.ENXIO) return null;
  throw new LibcError("lseek", code);
}

/** Offset of the next hole at or after `offset`; the end of the file counts as a hole. */
export function seekHole(fd: number, offset: number): number {
  return checked("lseek", libc.lseek(fd, offset, SEEK_HOLE));
}

/** Copies between two files inside the kernel. Returns the number of copied bytes; 0 at the end of the source. */
export function copyFileRange(options: {
  from: number;
  fromOffset: number;
  to: number;
  toOffset: number;
  length: number;
}): number {
  const offsets = new BigInt64Array([BigInt(options.fromOffset), BigInt(options.toOffset)]);
  const result = libc.copy_file_range(options.from, ptr(offsets), options.to, ptr(offsets, 8), options.length, 0);
  return checked("copy_file_range", result);
}

const CLONE_NEWNET = 0x4000_0000;

/** Moves only this thread to a new, empty network namespace. @throws LibcError EPERM without CAP_SYS_ADMIN */
export function unshareNetwork(): void {
  checked("unshare", libc.unshare(CLONE_NEWNET));
}

/** Moves only this thread to the network namespace of an open file of /proc/PID/ns. */
export function enterNetwork(fd: number): void {
  checked("setns", libc.setns(fd, CLONE_NEWNET));
}

const AF_INET = 2;
const SOCK_DGRAM_CLOEXEC = 2 | 0o2000000;
const SIOCSIFFLAGS = 0x8914n;
const IFF_UP_FLAG = 1;
/** Size of struct ifreq, in `bytes`; the name precedes the flags. */
const IFREQ_BYTES = 40;
const IFREQ_FLAGS_OFFSET = 16;

/** Brings up the loopback interface of this thread's network. @throws LibcError EPERM without CAP_NET_ADMIN */
export function bringLoopbackUp(): void {
  const request = Buffer.alloc(IFREQ_BYTES);
  request.write("lo");
  request.writeInt16LE(IFF_UP_FLAG, IFREQ_FLAGS_OFFSET);
  const fd = checked("socket", libc.socket(AF_INET, SOCK_DGRAM_CLOEXEC, 0));
  using _fd = { [Symbol.dispose]: () => closeSync(fd) };
  checked("ioctl", libc.ioctl(fd, SIOCSIFFLAGS, ptr(request)));
}

/** FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h. */
const GET_INODE_FLAGS = 0x8008_6601n;
const SET_INODE_FLAGS = 0x4008_6602n;

/** Sets flags of an inode (FS_*_FL), like chattr. @throws LibcError ENOTTY or EOPNOTSUPP when there are none */
export function addInodeFlags(fd: number, flags: number): void {
  const value = new Uint32Array(2);
  checked("ioctl", libc.ioctl(fd, GET_INODE_FLAGS, ptr(value)));
  value[0] = (value[0] ?? 0) | flags;
  checked("ioctl", libc.ioctl(fd, SET_INODE_FLAGS, ptr(value)));
}

const AF_INET6 = 10;
/** Any port will do: connecting a datagram socket sends nothing. */
const DISCARD_PORT = 9;

/** Whether the kernel has a route to an address of 4 or 16 bytes. Nothing is sent. */
export function hasRoute(address: readonly number[]): boolean {
  const isV4 = address.length === 4;
  const fd = libc.socket(isV4 ? AF_INET : AF_INET6, SOCK_DGRAM_CLOEXEC, 0);
  if (fd < 0) return errno() !== constants.errno.EAFNOSUPPORT;
  // Family and port; then the address, with flow and scope around it or padding behind it.
  const head = [isV4 ? AF_INET : AF_INET6, 0, 0, DISCARD_PORT];
  const rest = isV4 ? [...address, ...Array<number>(8).fill(0)] : [0, 0, 0, 0, ...address, 0, 0, 0, 0];
  const name = Uint8Array.from([...head, ...rest]);
  const result = libc.connect(fd, ptr(name), name.length);
  closeSync(fd);
  return result === 0;
}
