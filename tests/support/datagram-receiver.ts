import { dlopen, FFIType, ptr } from "bun:ffi";
import { closeSync } from "node:fs";

const { symbols: libc } = dlopen("libc.so.6", {
  socket: { args: [FFIType.i32, FFIType.i32, FFIType.i32], returns: FFIType.i32 },
  bind: { args: [FFIType.i32, FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  recv: { args: [FFIType.i32, FFIType.ptr, FFIType.u64, FFIType.i32], returns: FFIType.i64 },
});

const AF_UNIX = 1;
const SOCK_DGRAM = 2;
const MSG_DONTWAIT = 0x40;

/** Receives in place of a service manager. */
export class DatagramReceiver implements Disposable {
  readonly #fd: number;

  /** @param path of the socket to create, or "@" and an abstract name */
  constructor(path: string) {
    this.#fd = libc.socket(AF_UNIX, SOCK_DGRAM, 0);
    const address = Buffer.concat([Uint8Array.of(AF_UNIX, 0), Buffer.from(path.replace(/^@/, "\0"))]);
    if (libc.bind(this.#fd, ptr(address), address.byteLength) !== 0) throw new Error(`cannot bind ${path}`);
  }

  /** Datagrams that have arrived and were not returned yet. */
  take(): string[] {
    const messages: string[] = [];
    for (;;) {
      const buffer = new Uint8Array(4096);
      const length = Number(libc.recv(this.#fd, ptr(buffer), buffer.byteLength, MSG_DONTWAIT));
      if (length < 0) return messages;
      messages.push(Buffer.from(buffer.subarray(0, length)).toString("utf8"));
    }
  }

  [Symbol.dispose](): void {
    closeSync(this.#fd);
  }
}
