import { type Frame, viewOf } from "./frames.ts";
import { checkLength, parseError, unexpected } from "./payload.ts";
import { AgentFrame, Stream, WINDOW_BYTES_INITIAL } from "./protocol.ts";
import type { ConnectionRecord, ProcessRecord } from "./record.ts";
import { InboundStream, ReceiveWindow } from "./streams.ts";

/** The limit of the agent that a session counts against. */
export type SessionClass = "process" | "task" | "connection" | "file" | "watch";

/** One request under way. */
export interface Session {
  readonly class: SessionClass;
  /** true: after its DONE the agent sends nothing until the next SYNC */
  readonly holds?: boolean;
  /** Handles a frame; returns true for the last one of the session. @throws AgentProtocolError */
  onFrame(frame: Frame): boolean;
  /** Ends the session with an error; no frame follows. */
  fail(error: Error): void;
  /** The session during a hold. Omitted by tasks and requests for files, which end before a hold. */
  record?(): ProcessRecord | ConnectionRecord;
  /** Asks the guest to end the session, which may otherwise last for any time. Sessions with a record need not end. */
  leave?(error: Error): void;
}

/** A frame to send. */
export type FrameParts = readonly [type: number, session: number, ...payload: readonly Uint8Array[]];

/** A request whose answer is one frame with a number. */
export class ReplySession implements Session {
  readonly class = "task";
  readonly holds: boolean;
  readonly answer: Promise<bigint>;
  /** true when no more frames need to be sent for the request */
  ended = false;
  readonly #type: number;
  readonly #settle = Promise.withResolvers<bigint>();

  /**
   * @param type frame type of the answer
   * @param holds true when the agent sends nothing after the answer until the next SYNC
   */
  constructor(type: number, holds = false) {
    this.#type = type;
    this.holds = holds;
    this.answer = this.#settle.promise;
    // The request may fail while its data is still being sent, before anybody waits for the answer.
    this.answer.catch(() => undefined);
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.error) this.fail(parseError(frame));
    else if (frame.type === this.#type) this.#settle.resolve(checkLength(frame, 8).getBigUint64(0, true));
    else throw unexpected(frame);
    this.ended = true;
    return true;
  }

  fail(error: Error): void {
    this.ended = true;
    this.#settle.reject(error);
  }
}

/** The session of a quiesced scratch. */
export class QuiesceSession implements Session {
  readonly class = "task";
  readonly #still = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<bigint>();
  over = false;
  #isStill = false;

  constructor() {
    // A caller may wait for only one of them.
    this.#still.promise.catch(() => undefined);
    this.#ended.promise.catch(() => undefined);
  }

  get still(): Promise<void> {
    return this.#still.promise;
  }

  /** time without writes, in nanoseconds */
  get ended(): Promise<bigint> {
    return this.#ended.promise;
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.quiesced && !this.#isStill) {
      checkLength(frame, 0);
      this.#isStill = true;
      this.#still.resolve();
      return false;
    }
    if (frame.type === AgentFrame.error) this.fail(parseError(frame));
    else if (frame.type === AgentFrame.done && this.#isStill) {
      this.#ended.resolve(checkLength(frame, 8).getBigUint64(0, true));
    } else throw unexpected(frame);
    this.over = true;
    return true;
  }

  fail(error: Error): void {
    this.over = true;
    this.#still.reject(error);
    this.#ended.reject(error);
  }
}

/** The session of a disk's listing. The window bounds the bytes that wait for the reader. */
export class IndexSession implements Session {
  readonly class = "task";
  readonly #inbound: InboundStream;

  constructor(grant: (bytes: number) => void) {
    this.#inbound = new InboundStream(new ReceiveWindow(grant, { sizeBytes: WINDOW_BYTES_INITIAL }));
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.output) {
      if (frame.payload.byteLength <= 4 || viewOf(frame.payload).getUint32(0, true) !== Stream.stdout)
        throw unexpected(frame);
      this.#inbound.push(frame.payload.subarray(4));
      return false;
    }
    if (frame.type === AgentFrame.done) checkLength(frame, 8);
    else if (frame.type !== AgentFrame.error) throw unexpected(frame);
    this.#inbound.finish(frame.type === AgentFrame.error ? parseError(frame) : null);
    return true;
  }

  fail(error: Error): void {
    this.#inbound.finish(error);
  }

  /** Chunks as they arrive. A reader that stops early must end the machine, because the agent waits for credit. */
  chunks(): AsyncGenerator<Uint8Array> {
    return this.#inbound.chunks();
  }
}
