import { connectUnix } from "../../system/unix-sockets.ts";
import { ChannelClosedError, SocketChannel } from "../agent/channel.ts";
import type { ByteChannel } from "../vmm.ts";

/** Between attempts: a guest that boots takes some hundred milliseconds until its agent listens. */
const RETRY_MS = 5;
/** An attempt without an answer: the VMM gives up on a silent guest after two seconds by itself, but need not. */
const ATTEMPT_MS = 3000;
/** Longest answer to the handshake, in `bytes`: `OK`, a space, a port number, a line end. */
const ANSWER_BYTES_MAX = 32;
const NEWLINE = 0x0a;
const ANSWER = /^OK \d{1,10}$/;

interface PendingWrite {
  readonly bytes: Uint8Array;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/**
 * The agent's byte stream over the VMM's vsock device, whose host side is a unix socket: `CONNECT port` asks for the
 * guest's listener, `OK port` says that it accepted (docs/vsock.md). It connects by itself, again and again until the
 * agent has said its first byte: before that a connection may be one that the guest's kernel refused, or that ended
 * with the life that a snapshot was taken of. After it the stream is never reconnected.
 */
export class VsockChannel implements ByteChannel, AsyncDisposable {
  /** Settles when the agent has said its first byte; rejects when the channel is closed before. */
  readonly connected: Promise<void>;
  readonly #connection = Promise.withResolvers<void>();
  readonly #path: string;
  readonly #port: number;
  #stream: SocketChannel | null = null;
  #connected = false;
  #closed = false;
  #closeTold = false;
  #paused = false;
  #handler: ((chunk: Uint8Array | null) => void) | null = null;
  #first: Uint8Array | null = null;
  #writes: PendingWrite[] = [];

  private constructor(path: string, port: number) {
    this.#path = path;
    this.#port = port;
    this.connected = this.#connection.promise;
    // Not everybody waits for it.
    this.connected.catch(() => undefined);
  }

  /** Begins to connect; bytes may be written at once. @param path of the VMM's socket, at most 107 bytes */
  static open(path: string, port: number): VsockChannel {
    const channel = new VsockChannel(path, port);
    // It never rejects: what goes wrong is either tried again or closes the channel.
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

  /** One connection, up to the agent's first byte; null when it came to nothing. */
  async #attempt(): Promise<SocketChannel | null> {
    let stream: SocketChannel;
    try {
      stream = await SocketChannel.open(connectUnix(this.#path));
    } catch {
      // Whatever it is (nobody listens yet, the queue is full, the VMM is gone), it is tried again until `close`.
      return null;
    }
    this.#stream = stream;
    if (this.#closed) stream.close();
    const greeting = Promise.withResolvers<Uint8Array | null>();
    const decoder = new HandshakeDecoder();
    stream.onData((chunk) => {
      const first = chunk === null ? null : decoder.push(chunk);
      if (first === undefined) return;
      // What follows stays in the stream.
      stream.pause();
      greeting.resolve(first);
    });
    stream.write(Buffer.from(`CONNECT ${this.#port}\n`)).catch((error: Error) => {
      // The reader is told of the end as well.
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
    // The handler may have paused again.
    if (this.#connected && !this.#paused) this.#stream?.resume();
    if (this.#closed && !this.#closeTold && !this.#paused) {
      this.#closeTold = true;
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

/** Takes the handshake's answer off the front of a stream. */
class HandshakeDecoder {
  #head: Uint8Array | null = new Uint8Array(0);

  /** What follows the answer, once there is some; null when the answer is none; undefined: wait. */
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
