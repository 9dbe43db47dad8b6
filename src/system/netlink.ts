import { dlopen, FFIType, ptr } from "bun:ffi";
import { closeSync } from "node:fs";
import { checked, LibcError } from "./libc.ts";

/*
 * Reads the kernel's network configuration (rtnetlink(7)). The kernel answers a dump during the call that requests it, so
 * nothing here blocks. Structures and constants are those of little-endian Linux.
 */
const { symbols: libc } = dlopen("libc.so.6", {
  socket: { args: [FFIType.i32, FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  setsockopt: { args: [FFIType.i32, FFIType.i32, FFIType.i32, FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  send: { args: [FFIType.i32, FFIType.ptr, FFIType.u64, FFIType.i32], returns: FFIType.i64 },
  recv: { args: [FFIType.i32, FFIType.ptr, FFIType.u64, FFIType.i32], returns: FFIType.i64 },
});

const AF_NETLINK = 16;
const SOCK_RAW_CLOEXEC = 3 | 0o2000000;
const SOL_NETLINK = 270;
/** NETLINK_GET_STRICT_CHK */
const STRICT_CHECK_FLAG = 12;
const MSG_DONTWAIT = 0x40;
/** More than the kernel puts into one datagram of a dump. */
const DATAGRAM_BYTES_MAX = 65_536;
/** Dumps of tables that change meanwhile; the last one counts as it is. */
const DUMPS_COUNT_MAX = 4;

const MESSAGE = { error: 2, done: 3, newAddress: 20, getAddress: 22, newRoute: 24, getRoute: 26 } as const;
const FLAG = { request: 1, dump: 0x300, interrupted: 0x10 } as const;
const HEADER_BYTES = 16;
/** struct ifaddrmsg and struct rtmsg, with their attributes. */
const ADDRESS = { bytes: 8, address: 1, local: 2 } as const;
const ROUTE = { bytes: 12, destination: 1, tableLocal: 255, typeLocal: 2 } as const;
const FAMILY_BYTES: Readonly<Record<number, number>> = { 2: 4, 10: 16 };

/** Addresses that share their first `bits` bits. */
export interface AddressRange {
  /** 4 or 16 */
  readonly bytes: Uint8Array;
  readonly bits: number;
}

/**
 * The addresses at which this host reaches itself, with repetition: those of all interfaces, whether they are up, down or
 * without a carrier, and the routes of the kernel's table of local addresses, which may be whole ranges.
 * @throws LibcError
 */
export function localAddresses(): AddressRange[] {
  const fd = checked("socket", libc.socket(AF_NETLINK, SOCK_RAW_CLOEXEC, 0));
  using _fd = { [Symbol.dispose]: () => closeSync(fd) };
  // Then only the requested routes are sent. Kernels before 4.20 send all.
  libc.setsockopt(fd, SOL_NETLINK, STRICT_CHECK_FLAG, ptr(Uint32Array.of(1)), 4);
  const route = new Uint8Array(ROUTE.bytes);
  route[4] = ROUTE.tableLocal;
  route[7] = ROUTE.typeLocal;
  return [
    ...dump(fd, MESSAGE.getAddress, new Uint8Array(ADDRESS.bytes)).flatMap(addressOf),
    ...dump(fd, MESSAGE.getRoute, route).flatMap(localRouteOf),
  ];
}

/** A message of a dump, without its header. */
interface Message {
  readonly type: number;
  readonly body: Buffer;
}

function addressOf({ type, body }: Message): AddressRange[] {
  if (type !== MESSAGE.newAddress) return [];
  const attributes = attributesOf(body.subarray(ADDRESS.bytes));
  // With a peer, the address is the peer's.
  const bytes = attributes.get(ADDRESS.local) ?? attributes.get(ADDRESS.address);
  return rangeOf(body, bytes, 8 * (bytes?.length ?? 0));
}

function localRouteOf({ type, body }: Message): AddressRange[] {
  if (type !== MESSAGE.newRoute || body[4] !== ROUTE.tableLocal || body[7] !== ROUTE.typeLocal) return [];
  const any = Buffer.alloc(FAMILY_BYTES[body[0] ?? 0] ?? 0);
  return rangeOf(body, attributesOf(body.subarray(ROUTE.bytes)).get(ROUTE.destination) ?? any, body[1] ?? 0);
}

/** Nothing for a family other than those of the internet. */
function rangeOf([family = 0]: Buffer, bytes: Buffer | undefined, bits: number): AddressRange[] {
  return bytes !== undefined && bytes.length > 0 && bytes.length === FAMILY_BYTES[family] ? [{ bytes, bits }] : [];
}

function attributesOf(body: Buffer): Map<number, Buffer> {
  const attributes = new Map<number, Buffer>();
  for (let at = 0; at + 4 <= body.length; ) {
    const length = body.readUInt16LE(at);
    if (length < 4) break;
    attributes.set(body.readUInt16LE(at + 2), body.subarray(at + 4, at + length));
    at += (length + 3) & ~3;
  }
  return attributes;
}

function dump(fd: number, type: number, body: Uint8Array): Message[] {
  for (let count = 1; ; count++) {
    const { messages, isWhole } = dumpOnce(fd, type, body);
    if (isWhole || count === DUMPS_COUNT_MAX) return messages;
  }
}

function dumpOnce(fd: number, type: number, body: Uint8Array): { messages: Message[]; isWhole: boolean } {
  const request = Buffer.alloc(HEADER_BYTES + body.length);
  request.writeUInt32LE(request.length, 0);
  request.writeUInt16LE(type, 4);
  request.writeUInt16LE(FLAG.request | FLAG.dump, 6);
  request.set(body, HEADER_BYTES);
  checked("send", libc.send(fd, ptr(request), request.length, 0));
  const messages: Message[] = [];
  let isWhole = true;
  for (;;) {
    const datagram = Buffer.allocUnsafe(DATAGRAM_BYTES_MAX);
    const received = checked("recv", libc.recv(fd, ptr(datagram), datagram.length, MSG_DONTWAIT));
    for (let at = 0; at + HEADER_BYTES <= received; ) {
      const length = datagram.readUInt32LE(at);
      const message = { type: datagram.readUInt16LE(at + 4), body: datagram.subarray(at + HEADER_BYTES, at + length) };
      isWhole &&= (datagram.readUInt16LE(at + 6) & FLAG.interrupted) === 0;
      if (message.type === MESSAGE.done || message.type === MESSAGE.error) {
        const error = message.body.length < 4 ? 0 : message.body.readInt32LE(0);
        if (error < 0) throw new LibcError("netlink", -error);
        return { messages, isWhole };
      }
      messages.push(message);
      at += (length + 3) & ~3;
    }
  }
}
