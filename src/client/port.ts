import type { Client } from "./client.ts";
import { UnreachableError } from "./errors.ts";
import { MessageSocket } from "./socket.ts";

/** Subprotocol in which each side tells its end, and the appliance what it has taken. */
const PROTOCOL = "v1.port.coppice";
const END = JSON.stringify({ end: true });
const CLOSE_NORMAL = 1000;

interface PortMessage {
  /** bytes that may be sent before they are taken */
  readonly window?: number;
  /** bytes that were taken so far */
  readonly taken?: number;
  readonly end?: boolean;
}

/** A connection to a TCP port of a running instance. Both directions end on their own. */
export class PortConnection implements Disposable {
  readonly #socket: MessageSocket;
  readonly #credit: Credit;

  private constructor(socket: MessageSocket, credit: Credit) {
    this.#socket = socket;
    this.#credit = credit;
    void socket.closed.then(() => credit.close());
  }

  /** @throws ResponseError `conflict` when nothing listens on the port or the instance is not running; UnreachableError */
  static async open(client: Client, instance: string, port: number, signal?: AbortSignal): Promise<PortConnection> {
    const credit = new Credit();
    // Messages may come before the socket has a name here.
    const ended = Promise.withResolvers<void>();
    const socket = await MessageSocket.open(client, `/instances/${encodeURIComponent(instance)}/ports/${port}`, {
      protocols: [PROTOCOL],
      ...(signal === undefined ? {} : { signal }),
      onText(text) {
        const { window, taken, end } = JSON.parse(text) as PortMessage;
        if (window !== undefined) credit.open(window);
        if (taken !== undefined) credit.take(taken);
        if (end === true) ended.resolve();
      },
    });
    void ended.promise.then(() => socket.complete());
    return new PortConnection(socket, credit);
  }

  /** What the guest's program sends, to its end. @throws UnreachableError when the connection was reset or is lost */
  async *chunks(): AsyncGenerator<Uint8Array, void, undefined> {
    for await (const chunk of this.#socket.messages()) yield chunk;
    const { end } = this.#socket;
    if (end !== null && end.code !== CLOSE_NORMAL) throw new UnreachableError(end.reason);
  }

  /** Resolves when all of it is on its way; false when nobody takes it any more. */
  async write(bytes: Uint8Array): Promise<boolean> {
    for (let rest = bytes; rest.byteLength > 0; ) {
      const piece = rest.slice(0, await this.#credit.some());
      if (piece.byteLength === 0) return false;
      this.#credit.spend(piece.byteLength);
      this.#socket.send(piece);
      rest = rest.subarray(piece.byteLength);
    }
    return true;
  }

  /** Nothing more is written. */
  end(): void {
    this.#socket.send(END);
  }

  /** Resolves when the connection has ended in both directions, or is lost. */
  async ended(): Promise<void> {
    await this.#socket.closed;
  }

  [Symbol.dispose](): void {
    this.#socket[Symbol.dispose]();
  }
}

/** Bytes that the other side has room for. */
class Credit {
  #window = 0;
  #sent = 0;
  #taken = 0;
  #isClosed = false;
  #wake: (() => void) | null = null;

  /** How much may be sent now, as soon as it is more than nothing; 0: nothing ever again. */
  async some(): Promise<number> {
    while (!this.#isClosed && this.#room === 0) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return this.#isClosed ? 0 : this.#room;
  }

  open(window: number): void {
    this.#window = window;
    this.#wake?.();
  }

  take(bytesSoFar: number): void {
    this.#taken = bytesSoFar;
    this.#wake?.();
  }

  spend(bytes: number): void {
    this.#sent += bytes;
  }

  close(): void {
    this.#isClosed = true;
    this.#wake?.();
  }

  get #room(): number {
    return Math.max(0, this.#window - (this.#sent - this.#taken));
  }
}
