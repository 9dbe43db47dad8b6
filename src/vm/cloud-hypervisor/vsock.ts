import { connectUnix } from "../../system/unix-sockets.ts";
import { ChannelClosedError, SocketChannel } from "../agent/channel.ts";
import { Inbox } from "../agent/inbox.ts";
import type { ByteChannel } from "../vmm.ts";

/** Pause between attempts: a booting guest takes some hundred milliseconds until its agent listens. */
const RETRY_MS = 5;
/** Time limit of an attempt. The VMM should give up on a silent guest after two seconds, but may not. */
const ATTEMPT_MS = 3000;
/** Longest answer to the handshake, in `bytes`: `OK`, a space, a port number, a line feed. */
const ANSWER_BYTES_MAX = 32;
const NEWLINE = 0x0a;
const ANSWER = /^OK \d{1,10}$/;

/**
 * The agent's byte stream over the VMM's vsock device. The host side is a unix socket: `CONNECT port` asks for the
 * guest's listener, `OK port` confirms the connection (docs/vsock.md). The channel tries to connect until the agent has
 * sent its first byte: an earlier connection may be one that the guest's kernel refused, or one that ended when the
 * guest's snapshot was taken. Afterwards the channel never reconnects.
 */
export class VsockChannel implements ByteChannel, AsyncDisposable {
  /** Resolves when the agent has sent its first byte; rejects when the channel is closed before that. */
  readonly connected: Promise<unknown>;
  readonly #connection = Promise.withResolvers<SocketChannel>();
  readonly #path: string;
  readonly #port: number;
  readonly #inbox = new Inbox();
  /** of the attempt that is under way, later the one that is used */
  #stream: SocketChannel | null = null;
  #connected = false;
  #closed = false;

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

  async write(bytes: Uint8Array): Promise<void> {
    const stream = await this.#connection.promise;
    await stream.write(bytes);
  }

  onData(handler: (chunk: Uint8Array | null) => void): void {
    this.#inbox.onData(handler);
    this.#flow();
  }

  pause(): void {
    this.#inbox.pause();
    this.#stream?.pause();
  }

  resume(): void {
    this.#inbox.resume();
    this.#flow();
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
      // There is no listener yet, the queue is full or the VMM is gone: `#connect` tries again until `close`.
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
    this.#inbox.push(first);
    stream.onData((chunk) => {
      if (chunk === null) this.#onClose();
      else this.#inbox.push(chunk);
    });
    this.#connection.resolve(stream);
    this.#flow();
  }

  /** Resumes the stream, which the handshake or `pause` stopped, as soon as the reader takes chunks. */
  #flow(): void {
    if (this.#connected && this.#inbox.isFlowing) this.#stream?.resume();
  }

  #onClose(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#connection.reject(new ChannelClosedError("the stream is closed"));
    this.#inbox.end();
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
