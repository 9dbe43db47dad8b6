import { connectUnix } from "../../system/unix-sockets.ts";
import { ChannelClosedError, SocketChannel } from "../agent/channel.ts";
import type { ByteChannel } from "../vmm.ts";

/** Pause between attempts: a booting guest takes some hundred milliseconds until its agent listens. */
const RETRY_MS = 5;
/** Time limit of an attempt. The VMM should give up on a silent guest after two seconds, but may not. */
const ATTEMPT_MS = 3000;
/** Longest answer to the handshake, in `bytes`: `OK`, a space, a port number, a line feed. */
const ANSWER_BYTES_MAX = 32;
const NEWLINE = 0x0a;
const ANSWER = /^OK \d{1,10}$/;

interface PendingWrite {
  readonly bytes: Uint8Array;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/**
 * The agent's byte stream over the VMM's vsock device. The host side is a unix socket: `CONNECT port` asks for the
 * guest's listener, `OK port` confirms the connection (docs/vsock.md). The channel tries to connect until the agent has
 * sent its first byte: an earlier connection may be one that the guest's kernel refused, or one that ended when the
 * guest's snapshot was taken. Afterwards the channel never reconnects.
 */
export class VsockChannel implements ByteChannel, AsyncDisposable {
  /** Resolves when the agent has sent its first byte; rejects when the channel is closed before that. */
  readonly connected: Promise<void>;
  readonly #connection = Promise.withResolvers<void>();
  readonly #path: string;
  readonly #port: number;
  #stream: SocketChannel | null = null;
  #connected = false;
  #closed = false;
  #closeDelivered = false;
  #paused = false;
  #handler: ((chunk: Uint8Array | null) => void) | null = null;
  #first: Uint8Array | null = null;
  #writes: PendingWrite[] = [];

  private constructor(path: string, port: number) {
    this.#path = path;
    this.#port = port;
    this.connected = this.#connection.promise;
    // A caller may not wait for it.
    this.connected.catch(() => undefined);
  }

  /** Starts to connect; bytes may be written at once. @param path the VMM's socket, at most 107 bytes */
  static open(path: string, port: number): VsockChannel {
    const channel = new VsockChannel(path, port);
    // It never rejects: an error leads to another attempt, or closes the channel.
    void channel.#connect();
    return channel;
  }

  write(bytes: Uint8Array): Promise<void> {
    if (this.#closed) return Promise.reject(new ChannelClosedError("the stream is closed"));
    if (this.#connected && this.#stream !== null) return this.#stream.write(bytes);
    return new Promise((resolve, reject) => this.#writes.push({ bytes, resolve, reject }));
  }

  onData(handler: (chunk: Uint8Array | null) => void): void {
    this.#handler = handler;
    this.#deliver();
  }

  pause(): void {
    this.#paused = true;
    this.#stream?.pause();
  }

  resume(): void {
    this.#paused = false;
    this.#deliver();
  }

  close(): void {
    this.#stream?.close();
    this.#onClose();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async #connect(): Promise<void> {
    while (!this.#closed && !this.#connected) {
      const stream = await this.#attempt();
      if (stream === null) await Bun.sleep(RETRY_MS);
    }
  }

  /** Makes one connection and waits for the agent's first byte; null when the attempt failed. */
  async #attempt(): Promise<SocketChannel | null> {
    let stream: SocketChannel;
    try {
      stream = await SocketChannel.open(connectUnix(this.#path));
    } catch {
      // Nobody listens yet, the queue is full or the VMM is gone: `#connect` tries again until `close`.
      return null;
    }
    this.#stream = stream;
    if (this.#closed) stream.close();
    const greeting = Promise.withResolvers<Uint8Array | null>();
    const decoder = new HandshakeDecoder();
    stream.onData((chunk) => {
      const first = chunk === null ? null : decoder.push(chunk);
      if (first === undefined) return;
      // Later bytes wait in the stream.
      stream.pause();
      greeting.resolve(first);
    });
    stream.write(Buffer.from(`CONNECT ${this.#port}\n`)).catch((error: Error) => {
      // The reader learns of the end as well.
      if (!(error instanceof ChannelClosedError)) throw error;
    });
    const late = setTimeout(() => greeting.resolve(null), ATTEMPT_MS);
    const first = await greeting.promise;
    clearTimeout(late);
    if (first === null || this.#closed) {
      stream.close();
      return null;
    }
    this.#start(stream, first);
    return stream;
  }

  #start(stream: SocketChannel, first: Uint8Array): void {
    this.#connected = true;
    this.#first = first;
    stream.onData((chunk) => {
      if (chunk === null) this.#onClose();
      else this.#handler?.(chunk);
    });
    for (const { bytes, resolve, reject } of this.#writes.splice(0)) stream.write(bytes).then(resolve, reject);
    this.#connection.resolve();
    this.#deliver();
  }

  #deliver(): void {
    if (this.#handler === null || this.#paused) return;
    const first = this.#first;
    this.#first = null;
    if (first !== null) this.#handler(first);
    // The handler may have paused the channel again.
    if (this.#connected && !this.#paused) this.#stream?.resume();
    if (this.#closed && !this.#closeDelivered && !this.#paused) {
      this.#closeDelivered = true;
      this.#handler(null);
    }
  }

  #onClose(): void {
    if (this.#closed) return;
    this.#closed = true;
    const error = new ChannelClosedError("the stream is closed");
    this.#connection.reject(error);
    for (const { reject } of this.#writes.splice(0)) reject(error);
    this.#deliver();
  }
}

/** Removes the answer to the handshake from the start of a stream. */
class HandshakeDecoder {
  #head: Uint8Array | null = new Uint8Array(0);

  /** The bytes after the answer, once there are some; null for an invalid answer; undefined to wait for more. */
  push(chunk: Uint8Array): Uint8Array | null | undefined {
    if (this.#head === null) return chunk;
    const bytes = Buffer.concat([this.#head, chunk]);
    const end = bytes.indexOf(NEWLINE);
    if (end < 0 && bytes.byteLength <= ANSWER_BYTES_MAX) {
      this.#head = bytes;
      return undefined;
    }
    if (end < 0 || end > ANSWER_BYTES_MAX || !ANSWER.test(bytes.toString("latin1", 0, end))) return null;
    this.#head = null;
    return bytes.byteLength > end + 1 ? bytes.subarray(end + 1) : undefined;
  }
}
