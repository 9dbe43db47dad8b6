import type { Client, SocketOptions } from "../client.ts";
import { UnreachableError } from "../errors.ts";

/** Number of unread bytes from which on the connection is paused. */
const WAITING_BYTES_MAX = 1_048_576;
/** Number of unread bytes at which a WebSocket that cannot be paused, such as that of a browser, is closed. */
const UNPAUSED_BYTES_MAX = 8_388_608;
const CLOSE_NORMAL = 1000;
/** Code of a WebSocket that ended without a close frame. */
const CLOSE_ABNORMAL = 1006;

/** The close of a socket, with a code of RFC 6455. */
export interface SocketEnd {
  readonly code: number;
  readonly reason: string;
}

/** Methods of Bun's WebSocket that a browser's lacks. */
type PausableSocket = WebSocket & { pause?(): void; resume?(): void };

/**
 * A WebSocket of the appliance with back-pressure for binary messages. If it cannot be paused, a reader that is too slow
 * gets the waiting messages, and then the error of a broken connection.
 */
export class MessageSocket implements Disposable {
  readonly #socket: PausableSocket;
  readonly #path: string;
  readonly #onText: (text: string) => void;
  readonly #waiting: Uint8Array[] = [];
  #waitingBytes = 0;
  #end: SocketEnd | null = null;
  readonly #closing = Promise.withResolvers<SocketEnd>();
  #isComplete = false;
  #wake: (() => void) | null = null;

  private constructor(socket: PausableSocket, path: string, onText: (text: string) => void) {
    this.#socket = socket;
    this.#path = path;
    this.#onText = onText;
    socket.addEventListener("message", ({ data }: MessageEvent<string | ArrayBuffer>) => this.#onMessage(data));
    socket.addEventListener("close", ({ code, reason }) => this.#onEnd({ code, reason }));
  }

  /**
   * @param onText gets text messages on arrival, ahead of binary ones that wait to be read
   * @throws as `Client.socket`
   */
  static open(
    client: Client,
    path: string,
    { onText = () => undefined, ...options }: SocketOptions & { readonly onText?: (text: string) => void },
  ): Promise<MessageSocket> {
    return client.socket(path, options, (socket) => new MessageSocket(socket, path, onText));
  }

  /** The close of the socket; null while it is open. */
  get end(): SocketEnd | null {
    return this.#end;
  }

  /** Resolves when it is closed, even if messages wait to be read. */
  get closed(): Promise<SocketEnd> {
    return this.#closing.promise;
  }

  /**
   * Binary messages in their order, until the socket is closed or `complete` was called.
   * @throws UnreachableError if the connection breaks
   */
  async *messages(): AsyncGenerator<Uint8Array, void, undefined> {
    for (;;) {
      for (let message = this.#waiting.shift(); message !== undefined; message = this.#waiting.shift()) {
        yield message;
        this.#waitingBytes -= message.byteLength;
        if (this.#waitingBytes <= WAITING_BYTES_MAX / 2) this.#socket.resume?.();
      }
      if (this.#end !== null || this.#isComplete) break;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    if (this.#end?.code !== CLOSE_ABNORMAL) return;
    throw new UnreachableError(`the connection of ${this.#path} broke off`);
  }

  /** Ends the binary messages; the socket stays open. */
  complete(): void {
    this.#isComplete = true;
    this.#wake?.();
  }

  /** Sends a message. The other side must have room for it: the buffer here has no limit. */
  send(message: string | Uint8Array<ArrayBuffer>): void {
    if (this.#end === null) this.#socket.send(message);
  }

  /** Closes the socket after all sent messages. */
  [Symbol.dispose](): void {
    if (this.#end === null) this.#socket.close(CLOSE_NORMAL);
    // The close frame of the other side must be read.
    this.#socket.resume?.();
  }

  #onEnd(end: SocketEnd): void {
    if (this.#end !== null) return;
    this.#end = end;
    this.#closing.resolve(end);
    this.#wake?.();
  }

  #onMessage(data: string | ArrayBuffer): void {
    if (this.#end !== null) return;
    if (typeof data === "string") {
      this.#onText(data);
      return;
    }
    this.#waiting.push(new Uint8Array(data));
    this.#waitingBytes += data.byteLength;
    if (this.#waitingBytes > WAITING_BYTES_MAX) this.#socket.pause?.();
    if (this.#waitingBytes > UNPAUSED_BYTES_MAX && this.#socket.pause === undefined) {
      this.#socket.close(CLOSE_NORMAL);
      this.#onEnd({ code: CLOSE_ABNORMAL, reason: "too many bytes wait to be read" });
    }
    this.#wake?.();
  }
}
