import type { Socket, SocketHandler } from "bun";
import { sleepUnlessAborted } from "../system/waiting.ts";

/** Bytes of a client that wait to be read. Above it, no more are received. */
const UNREAD_BYTES_MAX = 65_536;
/** A client that has vanished is noticed after this time of silence and a few probes, in `milliseconds`. */
const PROBE_AFTER_MS = 60_000;
/** Time for a client to read the last answer before its connection is closed, in `milliseconds`. */
const LINGER_MS = 2000;

/** The server's side of a client's connection. When the client ends its direction, it has left. */
export class ClientSocket {
  readonly #socket: Socket<ClientSocket>;
  readonly #stallMs: number;
  readonly #gone = new AbortController();
  #unread: Uint8Array[] = [];
  #unreadBytes = 0;
  #isPaused = false;
  #isDiscarding = false;
  #wakeReader: (() => void) | null = null;
  #wakeWriter: (() => void) | null = null;

  /** @param stallMs time for the client to read some of what is sent to it */
  constructor(socket: Socket<ClientSocket>, stallMs: number) {
    this.#socket = socket;
    this.#stallMs = stallMs;
    socket.setKeepAlive(true, PROBE_AFTER_MS);
    socket.setNoDelay(true);
  }

  get address(): string {
    return this.#socket.remoteAddress;
  }

  /** aborted when the client has left, or the connection was closed */
  get gone(): AbortSignal {
    return this.#gone.signal;
  }

  /** The client's bytes, for one reader, up to their end. */
  async *chunks(): AsyncGenerator<Uint8Array> {
    for (;;) {
      for (let chunk = this.#unread.shift(); chunk !== undefined; chunk = this.#unread.shift()) {
        this.#unreadBytes -= chunk.byteLength;
        this.#resumeIfRoom();
        yield chunk;
      }
      if (this.gone.aborted) return;
      await new Promise<void>((resolve) => {
        this.#wakeReader = resolve;
      });
    }
  }

  /**
   * Sends bytes, one call at a time. Resolves to true when the system has taken all of them; to false when the client has
   * left, or reads nothing for too long, which closes the connection.
   */
  async write(bytes: Uint8Array): Promise<boolean> {
    for (let rest = bytes; !this.gone.aborted; ) {
      // A closed socket returns -1, and reports that by its event.
      rest = rest.subarray(Math.max(0, this.#socket.write(rest)));
      if (rest.byteLength === 0) return true;
      if (!(await this.#canWrite())) this.reset();
    }
    return false;
  }

  /** Closes the connection after everything that was written, and lets the client read it although it may send more. */
  async finish(): Promise<void> {
    if (this.gone.aborted) return;
    this.#isDiscarding = true;
    this.#unread = [];
    this.#unreadBytes = 0;
    this.#resumeIfRoom();
    this.#socket.shutdown();
    await sleepUnlessAborted(LINGER_MS, this.gone);
    this.reset();
  }

  /** Closes the connection at once. */
  reset(): void {
    this.#socket.terminate();
    this.#onGone();
  }

  /** The handlers of sockets whose data is set to a `ClientSocket` when they open. */
  static readonly handlers: Pick<SocketHandler<ClientSocket>, "data" | "drain" | "end" | "close" | "error"> = {
    data: ({ data }, bytes) => data.#onBytes(bytes),
    drain: ({ data }) => data.#wakeWriter?.(),
    end: ({ data }) => data.#onGone(),
    close: ({ data }) => data.#onGone(),
    // The close event follows.
    error: () => undefined,
  };

  #onBytes(bytes: Uint8Array): void {
    if (this.#isDiscarding) return;
    this.#unread.push(bytes);
    this.#unreadBytes += bytes.byteLength;
    if (this.#unreadBytes > UNREAD_BYTES_MAX && !this.#isPaused) {
      this.#isPaused = true;
      this.#socket.pause();
    }
    this.#wakeReader?.();
  }

  #resumeIfRoom(): void {
    if (!this.#isPaused || this.#unreadBytes > 0 || this.gone.aborted) return;
    this.#isPaused = false;
    this.#socket.resume();
  }

  #onGone(): void {
    this.#gone.abort();
    this.#wakeReader?.();
    this.#wakeWriter?.();
  }

  /** Waits until the system takes more bytes; false when that takes too long. */
  async #canWrite(): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const timer = setTimeout(() => resolve(false), this.#stallMs);
    using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
    this.#wakeWriter = () => resolve(true);
    return await promise;
  }
}
