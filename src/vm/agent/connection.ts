import { AgentClosedError, AgentProtocolError, AgentRefusedError } from "./errors.ts";
import type { Frame } from "./frames.ts";
import { AgentFrame, Refusal } from "./protocol.ts";
import {
  checkLength,
  InboundStream,
  type OutboundStream,
  parseError,
  type ReceiveWindow,
  type Session,
  unexpected,
} from "./sessions.ts";

const REASONS: ReadonlySet<number> = new Set(Object.values(Refusal));

/** The session of a connection that the host opened. */
export class ConnectionSession implements Session {
  readonly class = "connection";
  /** resolves when a program in the guest has accepted. @throws AgentRefusedError */
  readonly opened: Promise<void>;
  readonly #opening = Promise.withResolvers<void>();
  readonly #inbound: InboundStream;
  readonly #outbound: OutboundStream;
  #isOpen = false;
  #sentEnd = false;
  #gotEnd = false;
  #sentReset = false;
  #over = false;

  constructor(window: ReceiveWindow, outbound: OutboundStream) {
    this.#inbound = new InboundStream(window);
    this.#outbound = outbound;
    this.opened = this.#opening.promise;
    this.opened.catch(() => undefined);
  }

  /** true when the host may send no more frames */
  get over(): boolean {
    return this.#over || this.#sentReset;
  }

  onFrame(frame: Frame): boolean {
    this.#over = this.#take(frame);
    if (this.#over) this.#outbound.stop();
    return this.#over;
  }

  fail(error: Error): void {
    this.#over = true;
    this.#opening.reject(error);
    this.#inbound.finish(error);
    this.#outbound.stop();
  }

  /** Records that the host's NET_END is being sent. */
  sendEnd(): void {
    this.#sentEnd = true;
  }

  /** Records that the host's NET_RESET is being sent. Frames that arrive before the answer are dropped. */
  sendReset(): void {
    this.#sentReset = true;
    this.#outbound.stop();
    const error = new AgentClosedError("the connection was reset by the host");
    this.#opening.reject(error);
    this.#inbound.finish(error);
  }

  /** The guest's bytes, for one reader. @throws AgentClosedError after a reset */
  chunks(): AsyncGenerator<Uint8Array> {
    return this.#inbound.chunks();
  }

  #take(frame: Frame): boolean {
    switch (frame.type) {
      case AgentFrame.netOpened:
        checkLength(frame, 0);
        if (this.#isOpen) throw unexpected(frame);
        this.#isOpen = true;
        this.#opening.resolve();
        return false;
      case AgentFrame.netRefused:
        return this.#refused(frame);
      case AgentFrame.error:
        if (this.#isOpen) throw unexpected(frame);
        this.fail(parseError(frame));
        return true;
      default:
        if (!this.#isOpen) throw unexpected(frame);
        return this.#takeOpen(frame);
    }
  }

  #refused(frame: Frame): boolean {
    const reason = checkLength(frame, 4).getUint32(0, true);
    if (this.#isOpen || !REASONS.has(reason)) throw unexpected(frame);
    this.fail(new AgentRefusedError(reason));
    return true;
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
