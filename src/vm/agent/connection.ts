import type { Destination } from "../../domain/network.ts";
import { AgentClosedError, AgentProtocolError, AgentRefusedError } from "./errors.ts";
import { type Frame, packIntegers } from "./frames.ts";
import { checkLength, parseError, unexpected } from "./payload.ts";
import * as protocol from "./protocol.ts";
import { AgentFrame, HostFrame, Refusal, Stream } from "./protocol.ts";
import type { ConnectionRecord } from "./record.ts";
import type { FrameParts, Session } from "./sessions.ts";
import { InboundStream, OutboundStream, ReceiveWindow } from "./streams.ts";

/** Largest growth of the windows of all connections of a guest, which then have 32 MiB together. */
const GROWTH_BYTES_MAX = 33_554_432 - protocol.CONNECTIONS_COUNT_MAX * protocol.INPUT_WINDOW_BYTES_INITIAL;
const NOTHING = new Uint8Array();
const REASONS: ReadonlySet<number> = new Set(Object.values(Refusal));

/** A connection between the host and a program of the guest. Each direction ends on its own, as with a socket. */
export interface AgentConnection extends AsyncDisposable {
  /** The guest's bytes, for one reader. @throws AgentClosedError after a reset */
  chunks(): AsyncGenerator<Uint8Array>;
  /** Sends bytes in the order of the calls. Resolves to true when all are sent, to false when the guest reads no more. */
  write(bytes: Uint8Array): Promise<boolean>;
  /** Ends the host's direction after everything written so far. */
  end(): Promise<void>;
  /** Ends both directions at once; does nothing when the connection is over. Disposal does the same. */
  reset(): void;
}

/** A connection that a program of the guest has requested. It must be accepted before anything is written or read. */
export interface GuestConnection extends AgentConnection {
  /** aborted when the connection is reset or refused by either side, or is lost; not when both sides have ended it */
  readonly signal: AbortSignal;
  /** Reports that the outer connection is open. Does nothing when the connection is over. */
  accept(): void;
  /** Reports why there is no outer connection, as a `Refusal`, and ends it. Does nothing when the connection is over. */
  refuse(reason: number): void;
}

/** The part of the link to a guest that a connection uses. */
export interface ConnectionLink {
  post(type: number, session: number, ...payload: readonly Uint8Array[]): void;
  /** Sends the frame of `make`, or none when that is null, after the waiting frames of other connections. */
  sendInTurn(make: () => FrameParts | null): Promise<void>;
  /** Sends the frame of `make`, or none when that is null. `make` is called when the frame can be sent. */
  sendMade(make: () => FrameParts | null): Promise<void>;
  /** Forgets a session of which the host sent the last frame. */
  forget(session: number): void;
  readonly growth: WindowGrowth;
}

/** The growth that is left for the windows of a guest's connections, in `bytes`. */
export class WindowGrowth {
  #leftBytes = GROWTH_BYTES_MAX;

  /** Returns false and reserves nothing when less is left. */
  take(bytes: number): boolean {
    if (bytes > this.#leftBytes) return false;
    this.#leftBytes -= bytes;
    return true;
  }

  give(bytes: number): void {
    this.#leftBytes += bytes;
  }
}

/** The session of a connection, whichever side opened it. */
abstract class ConnectionSession implements Session, AgentConnection {
  readonly class = "connection";
  /** set when the session is registered */
  id = 0;
  /** the destination that the guest requested; null: the host opened the connection */
  abstract readonly destination: Destination | null;
  protected readonly link: ConnectionLink;
  protected isOpen = false;
  readonly #window: ReceiveWindow;
  readonly #inbound: InboundStream;
  readonly #outbound: OutboundStream;
  readonly #broken = new AbortController();
  #grownBytes = 0;
  #sentEnd = false;
  #gotEnd = false;
  #sentReset = false;
  #over = false;

  /** @param from an earlier connection to continue */
  constructor(link: ConnectionLink, from?: ConnectionRecord) {
    this.link = link;
    const window = new ReceiveWindow(
      (bytes) => link.post(HostFrame.window, this.id, packIntegers([32, Stream.data], [32, bytes])),
      {
        sizeBytes: protocol.INPUT_WINDOW_BYTES_INITIAL,
        sizeBytesMax: protocol.INPUT_WINDOW_BYTES_MAX,
        mayGrow: (bytes) => this.#grow(bytes),
        from: from?.inbound,
      },
    );
    this.#window = window;
    this.#inbound = new InboundStream(window, from?.waiting);
    this.#outbound = new OutboundStream((take) => link.sendInTurn(() => this.#dataFrame(take)), {
      stream: Stream.data,
      pieceBytesMax: protocol.FRAME_PAYLOAD_BYTES_MAX,
      from: from?.outbound,
    });
    if (from !== undefined) this.#continue(from);
  }

  record(): ConnectionRecord {
    return {
      class: "connection",
      session: this.id,
      destination: this.destination,
      isOpen: this.isOpen,
      inbound: this.#window.record(),
      waiting: this.#inbound.waiting,
      outbound: this.#outbound.record(),
      sentEnd: this.#sentEnd,
      gotEnd: this.#gotEnd,
      sentReset: this.#sentReset,
    };
  }

  /** true when the host may send no more frames */
  get over(): boolean {
    return this.#over || this.#sentReset;
  }

  /** aborted when the connection is reset or refused by either side, or is lost; not when both sides have ended it */
  get signal(): AbortSignal {
    return this.#broken.signal;
  }

  onFrame(frame: Frame): boolean {
    const isLast = this.isOpen ? this.#takeOpen(frame) : this.takeOpening(frame);
    if (isLast) this.#finish();
    if (isLast && frame.type !== AgentFrame.done) this.#broken.abort();
    return isLast;
  }

  fail(error: Error): void {
    this.#inbound.finish(error);
    this.#finish();
    this.#broken.abort();
  }

  chunks(): AsyncGenerator<Uint8Array> {
    return this.#inbound.chunks();
  }

  async write(bytes: Uint8Array): Promise<boolean> {
    return await this.#outbound.write(bytes);
  }

  async end(): Promise<void> {
    const make = (): FrameParts | null => {
      if (this.over) return null;
      this.#sentEnd = true;
      return [HostFrame.netEnd, this.id];
    };
    await this.#outbound.close(() => this.link.sendMade(make));
  }

  reset(): void {
    if (this.over) return;
    // Frames that arrive before the answer are dropped.
    this.#sentReset = true;
    this.#outbound.stop();
    this.#inbound.finish(resetByHost());
    this.#broken.abort();
    this.link.post(HostFrame.netReset, this.id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.reset();
  }

  /** Handles a frame of a connection that is not open yet; returns true for the last one of the session. */
  protected abstract takeOpening(frame: Frame): boolean;

  #continue(from: ConnectionRecord): void {
    this.id = from.session;
    this.isOpen = from.isOpen;
    this.#sentEnd = from.sentEnd;
    this.#gotEnd = from.gotEnd;
    this.#sentReset = from.sentReset;
    if (from.sentReset) this.#inbound.finish(resetByHost());
    else if (from.gotEnd) this.#inbound.finish(null);
    this.#grow(from.inbound.sizeBytes - protocol.INPUT_WINDOW_BYTES_INITIAL);
    // The earlier reader has consumed the bytes that no longer wait.
    const takenBytes = this.#window.waitingBytes - this.#inbound.waitingBytes;
    if (!from.sentReset && !from.gotEnd) this.#window.consume(takenBytes);
  }

  /** The frame of a piece that has waited for its turn; null when there is nothing to send, as after a reset. */
  #dataFrame(take: () => Uint8Array): FrameParts | null {
    const bytes = this.over ? NOTHING : take();
    return bytes.byteLength === 0 ? null : [HostFrame.netData, this.id, bytes];
  }

  #grow(bytes: number): boolean {
    if (!this.link.growth.take(bytes)) return false;
    this.#grownBytes += bytes;
    return true;
  }

  #finish(): void {
    this.#over = true;
    this.#outbound.stop();
    this.link.growth.give(this.#grownBytes);
    this.#grownBytes = 0;
  }

  #takeOpen(frame: Frame): boolean {
    switch (frame.type) {
      case AgentFrame.netData:
        if (frame.payload.byteLength === 0 || this.#gotEnd) throw unexpected(frame);
        this.#inbound.push(frame.payload);
        return false;
      case AgentFrame.window:
        this.#outbound.credit(frame);
        return false;
      case AgentFrame.netEnd:
        checkLength(frame, 0);
        if (this.#gotEnd) throw unexpected(frame);
        this.#gotEnd = true;
        this.#inbound.finish(null);
        return false;
      case AgentFrame.done:
        checkLength(frame, 8);
        if (!this.#gotEnd || !this.#sentEnd) throw unexpected(frame);
        return true;
      case AgentFrame.netReset:
        checkLength(frame, 0);
        this.#inbound.finish(new AgentClosedError("the connection was reset by the guest"));
        return true;
      default:
        throw new AgentProtocolError(`a frame of type ${frame.type} for a connection`);
    }
  }
}

function resetByHost(): AgentClosedError {
  return new AgentClosedError("the connection was reset by the host");
}

/** The session of a connection that the host opened. */
export class DialledConnection extends ConnectionSession {
  override readonly destination = null;
  readonly #opening = Promise.withResolvers<void>();

  /** @param from an earlier connection to continue */
  constructor(link: ConnectionLink, from?: ConnectionRecord) {
    super(link, from);
    this.#opening.promise.catch(() => undefined);
  }

  /** Resolves when a program in the guest has accepted. @throws AgentRefusedError */
  get opened(): Promise<void> {
    return this.#opening.promise;
  }

  override fail(error: Error): void {
    this.#opening.reject(error);
    super.fail(error);
  }

  protected override takeOpening(frame: Frame): boolean {
    switch (frame.type) {
      case AgentFrame.netOpened:
        checkLength(frame, 0);
        this.isOpen = true;
        this.#opening.resolve();
        return false;
      case AgentFrame.netRefused: {
        const reason = checkLength(frame, 4).getUint32(0, true);
        if (!REASONS.has(reason)) throw unexpected(frame);
        this.fail(new AgentRefusedError(reason));
        return true;
      }
      case AgentFrame.error:
        this.fail(parseError(frame));
        return true;
      default:
        throw unexpected(frame);
    }
  }
}

/** The session of a connection that the guest opened. */
export class GuestOpenedConnection extends ConnectionSession implements GuestConnection {
  override readonly destination: Destination;

  /** @param from an earlier connection to continue */
  constructor(link: ConnectionLink, destination: Destination, from?: ConnectionRecord) {
    super(link, from);
    this.destination = destination;
  }

  accept(): void {
    if (this.isOpen) throw new Error("a connection is accepted once");
    if (this.over) return;
    this.isOpen = true;
    this.link.post(HostFrame.netAccept, this.id);
  }

  refuse(reason: number): void {
    if (this.isOpen) throw new Error("a connection that was accepted cannot be refused");
    if (this.over) return;
    this.link.post(HostFrame.netRefuse, this.id, packIntegers([32, reason]));
    this.link.forget(this.id);
    this.fail(new AgentClosedError("the connection was refused by the host"));
  }

  override reset(): void {
    if (this.isOpen) super.reset();
    else this.refuse(Refusal.unreachable);
  }

  protected override takeOpening(frame: Frame): boolean {
    if (frame.type !== AgentFrame.netReset) throw unexpected(frame);
    checkLength(frame, 0);
    this.fail(new AgentClosedError("the connection was reset by the guest"));
    return true;
  }
}
