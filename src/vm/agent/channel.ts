import type { Socket } from "bun";
import type { ByteChannel } from "../vmm.ts";
import { Inbox } from "./inbox.ts";

/** Limit of bytes that wait for a missing or paused reader, in `bytes`. Above it the socket is paused. */
const UNREAD_BYTES_MAX = 1_048_576;
/** The same for their chunks: those of a hostile sender can have one byte each, and take a hundred times as much memory. */
const UNREAD_COUNT_MAX = 1024;

/** The other side or `close` closed the stream. */
export class ChannelClosedError extends Error {
  override readonly name = "ChannelClosedError";
}

interface PendingWrite {
  bytes: Uint8Array;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/** A byte channel over a connected stream socket, which it owns. */
export class SocketChannel implements ByteChannel, AsyncDisposable {
  /** descriptor of the socket, for sending descriptors with the bytes */
  readonly fd: number;
  #socket: Socket | null = null;
  readonly #inbox = new Inbox();
  readonly #writes: PendingWrite[] = [];
  /** true while the socket is not read, because the inbox is full */
  #stopped = false;
  #closed = false;

  private constructor(fd: number) {
    this.fd = fd;
  }

  static async open(fd: number): Promise<SocketChannel> {
    const channel = new SocketChannel(fd);
    const options = {
      fd,
      socket: {
        binaryType: "uint8array" as const,
        data: (_: Socket, chunk: Uint8Array) => channel.#onBytes(chunk),
        drain: () => channel.#flush(),
        close: () => channel.#onClose(),
        // The close event follows, and the reader and the writers learn of it there.
        error: () => undefined,
      },
    };
    // Bun accepts a descriptor here, but its types do not declare that.
    channel.#socket = await (Bun.connect as unknown as (options: object) => Promise<Socket>)(options);
    return channel;
  }

  write(bytes: Uint8Array): Promise<void> {
    if (this.#closed) return Promise.reject(new ChannelClosedError("the stream is closed"));
    return new Promise((resolve, reject) => {
      this.#writes.push({ bytes, resolve, reject });
      if (this.#writes.length === 1) this.#flush();
    });
  }

  onData(handler: (chunk: Uint8Array | null) => void): void {
    this.#inbox.onData(handler);
    this.#refill();
  }

  pause(): void {
    this.#inbox.pause();
  }

  resume(): void {
    this.#inbox.resume();
    this.#refill();
  }

  close(): void {
    this.#socket?.terminate();
    this.#onClose();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  #onBytes(chunk: Uint8Array): void {
    this.#inbox.push(chunk);
    const isFull = this.#inbox.byteLength > UNREAD_BYTES_MAX || this.#inbox.length > UNREAD_COUNT_MAX;
    if (isFull && !this.#stopped) {
      this.#stopped = true;
      this.#socket?.pause();
    }
  }

  #refill(): void {
    if (!this.#stopped || this.#inbox.byteLength > 0) return;
    this.#stopped = false;
    this.#socket?.resume();
  }

  #flush(): void {
    for (let write = this.#writes[0]; write !== undefined && !this.#closed; write = this.#writes[0]) {
      const writtenBytes = this.#socket?.write(write.bytes) ?? 0;
      if (writtenBytes < 0) return;
      if (writtenBytes < write.bytes.byteLength) {
        write.bytes = write.bytes.subarray(writtenBytes);
        return;
      }
      this.#writes.shift();
      write.resolve();
    }
  }

  #onClose(): void {
    if (this.#closed) return;
    this.#closed = true;
    const error = new ChannelClosedError("the stream is closed");
    for (const write of this.#writes.splice(0)) write.reject(error);
    this.#inbox.end();
  }
}
