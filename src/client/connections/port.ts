import { ByteCredit } from "../../domain/bytes/byte-credit.ts";
import { given } from "../../domain/given.ts";
import type { Client } from "../client.ts";
import { UnreachableError } from "../errors.ts";
import { type Place, pathOfPlace, placeOfInstance } from "../place.ts";
import { MessageSocket } from "./socket.ts";

/** Subprotocol in which each side reports its end, and the number of bytes that it has read. */
const PROTOCOL = "v2.port.coppice";
/** `taken` is sent after this many further `bytes`: a small part of the window, so that the guest need not wait. */
const TAKEN_STEP_BYTES = 65_536;
const END = JSON.stringify({ end: true });
const CLOSE_NORMAL = 1000;

interface PortMessage {
  /** bytes that each side may send before the other has read them */
  readonly window?: number;
  /** bytes that were read so far */
  readonly taken?: number;
  readonly end?: boolean;
}

/** A connection to a TCP port of a running instance, or of a sandbox. Each direction ends by itself. */
export class PortConnection implements Disposable {
  readonly #socket: MessageSocket;
  readonly #credit: ByteCredit;

  private constructor(socket: MessageSocket, credit: ByteCredit) {
    this.#socket = socket;
    this.#credit = credit;
    void socket.closed.then(() => credit.close());
  }

  /** @throws ResponseError `conflict` when nothing listens on the port or the instance is not running; UnreachableError */
  static async open(
    client: Client,
    place: Place | string,
    port: number,
    signal?: AbortSignal,
  ): Promise<PortConnection> {
    const credit = new ByteCredit();
    // Messages may arrive before the variable of the socket is set.
    const ended = Promise.withResolvers<void>();
    const socket = await MessageSocket.open(client, `${pathOfPlace(placeOfInstance(place))}/ports/${port}`, {
      protocols: [PROTOCOL],
      ...given({ signal }),
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

  /**
   * The bytes of the guest's program, until its end; it waits for a slow reader.
   * @throws UnreachableError when the connection was reset or is lost
   */
  async *chunks(): AsyncGenerator<Uint8Array, void, undefined> {
    let takenBytes = 0;
    let toldBytes = 0;
    for await (const chunk of this.#socket.messages()) {
      yield chunk;
      takenBytes += chunk.byteLength;
      if (takenBytes - toldBytes < TAKEN_STEP_BYTES) continue;
      this.#socket.send(JSON.stringify({ taken: takenBytes }));
      toldBytes = takenBytes;
    }
    const { end } = this.#socket;
    if (end !== null && end.code !== CLOSE_NORMAL) throw new UnreachableError(end.reason);
  }

  /** Resolves when all of it was sent; false when the other side no longer reads. */
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

  /** Ends this side's bytes. */
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
