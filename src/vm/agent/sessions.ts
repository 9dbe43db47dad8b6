import { ByteBlocks } from "../../domain/bytes/byte-blocks.ts";
import { AgentError, AgentProtocolError } from "./errors.ts";
import { type Frame, viewOf } from "./frames.ts";
import { AgentFrame, INPUT_WINDOW_BYTES_INITIAL, INPUT_WINDOW_BYTES_MAX, Stream } from "./protocol.ts";

/** Longest text of the guest in an error or a log line, in `bytes`. */
const TEXT_BYTES_MAX = 1024;

/** The limit of the agent that a session counts against. */
export type SessionClass = "process" | "task" | "connection";

/** One request under way. */
export interface Session {
  readonly class: SessionClass;
  /** true: after its DONE the agent sends nothing until the next SYNC */
  readonly holds?: boolean;
  /** Handles a frame; returns true for the last one of the session. @throws AgentProtocolError */
  onFrame(frame: Frame): boolean;
  /** Ends the session with an error; no frame follows. */
  fail(error: Error): void;
}

/** Gives the agent credit for more bytes of a stream. */
export type Grant = (stream: number, bytes: number) => void;

/** Text of the guest for people: shortened, with control characters replaced. */
export function guestText(bytes: Uint8Array): string {
  const text = Buffer.from(bytes.subarray(0, TEXT_BYTES_MAX)).toString("utf8");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is replaced.
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, "?");
}

export function unexpected(frame: Frame): AgentProtocolError {
  return new AgentProtocolError(`a frame of type ${frame.type} and ${frame.payload.byteLength} bytes out of place`);
}

/** The payload, if it has exactly `bytes` bytes. @throws AgentProtocolError */
export function checkLength(frame: Frame, bytes: number): DataView {
  if (frame.payload.byteLength !== bytes) throw unexpected(frame);
  return viewOf(frame.payload);
}

/** Decodes the payload of an ERROR. @throws AgentProtocolError */
export function parseError(frame: Frame): AgentError {
  if (frame.payload.byteLength < 8) throw unexpected(frame);
  const view = viewOf(frame.payload);
  if (view.getUint32(4, true) !== 0) throw unexpected(frame);
  return new AgentError(view.getUint32(0, true), guestText(frame.payload.subarray(8)));
}

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

/** The credit of one stream of the agent. */
export class ReceiveWindow {
  readonly #grant: (bytes: number) => void;
  readonly #sizeBytesMax: number;
  readonly #mayGrow: (bytes: number) => boolean;
  #sizeBytes: number;
  #creditBytes: number;
  #consumedBytes = 0;

  /**
   * @param sizeBytesMax size to which the window grows once the reader has consumed half of the initial size
   * @param mayGrow asked before the window grows by so many bytes; when it returns false, it is asked again later
   */
  constructor(
    grant: (bytes: number) => void,
    sizeBytes: number,
    sizeBytesMax = sizeBytes,
    mayGrow: (bytes: number) => boolean = () => true,
  ) {
    this.#grant = grant;
    this.#sizeBytes = sizeBytes;
    this.#sizeBytesMax = sizeBytesMax;
    this.#mayGrow = mayGrow;
    this.#creditBytes = sizeBytes;
  }

  /** @throws AgentProtocolError when the agent sent more than its credit */
  receive(bytes: number): void {
    if (bytes > this.#creditBytes) throw new AgentProtocolError("the agent sent more than its credit");
    this.#creditBytes -= bytes;
  }

  consume(bytes: number): void {
    this.#consumedBytes += bytes;
    // Granted in steps of half a window, so that one WINDOW frame answers many frames of the agent.
    if (this.#consumedBytes < this.#sizeBytes / 2) return;
    const growthBytes = this.#sizeBytesMax - this.#sizeBytes;
    const grows = growthBytes > 0 && this.#mayGrow(growthBytes);
    const grantedBytes = this.#consumedBytes + (grows ? growthBytes : 0);
    if (grows) this.#sizeBytes = this.#sizeBytesMax;
    this.#creditBytes += grantedBytes;
    this.#grant(grantedBytes);
    this.#consumedBytes = 0;
  }
}

/** Bytes of the guest that wait for their reader. The window bounds them. */
export class InboundStream {
  readonly #window: ReceiveWindow;
  readonly #pending = new ByteBlocks();
  #outcome: { readonly error: Error | null } | null = null;
  #wake: (() => void) | null = null;

  constructor(window: ReceiveWindow) {
    this.#window = window;
  }

  /** @throws AgentProtocolError when the agent sent more than its credit */
  push(bytes: Uint8Array): void {
    this.#window.receive(bytes.byteLength);
    this.#pending.push(bytes);
    this.#wake?.();
  }

  /** Marks the end of the stream, after the bytes that were pushed. The first call counts. */
  finish(error: Error | null): void {
    this.#outcome ??= { error };
    this.#wake?.();
  }

  /** Chunks as they arrive, for one reader. @throws the error given to `finish` */
  async *chunks(): AsyncGenerator<Uint8Array> {
    for (;;) {
      for (let chunk = this.#pending.take(); chunk !== null; chunk = this.#pending.take()) {
        yield chunk;
        if (this.#outcome === null) this.#window.consume(chunk.byteLength);
      }
      if (this.#outcome?.error) throw this.#outcome.error;
      if (this.#outcome !== null) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}

/** Sends bytes within the credit that the agent grants, one write after another. */
export class OutboundStream {
  readonly #send: (bytes: Uint8Array) => Promise<void>;
  readonly #pieceBytesMax: number;
  readonly #stream: number;
  #creditBytes = INPUT_WINDOW_BYTES_INITIAL;
  /** the previous write: writes keep their order */
  #last: Promise<unknown> = Promise.resolve();
  #ended = false;
  #wake: (() => void) | null = null;

  constructor(stream: number, pieceBytesMax: number, send: (bytes: Uint8Array) => Promise<void>) {
    this.#stream = stream;
    this.#pieceBytesMax = pieceBytesMax;
    this.#send = send;
  }

  /** Handles a WINDOW. @throws AgentProtocolError when it is for another stream or exceeds the largest credit */
  credit(frame: Frame): void {
    const view = checkLength(frame, 8);
    const bytes = view.getUint32(4, true);
    if (view.getUint32(0, true) !== this.#stream || bytes > INPUT_WINDOW_BYTES_MAX - this.#creditBytes)
      throw unexpected(frame);
    this.#creditBytes += bytes;
    this.#wake?.();
  }

  /** Resolves to true when all bytes are sent, to false when the other side reads no more. */
  write(bytes: Uint8Array): Promise<boolean> {
    return this.#inTurn(async () => {
      let rest = bytes;
      while (rest.byteLength > 0 && !this.#ended) {
        const taken = await this.#takeCredit(Math.min(rest.byteLength, this.#pieceBytesMax));
        if (taken > 0) await this.#send(rest.subarray(0, taken));
        rest = rest.subarray(taken);
      }
      return !this.#ended;
    });
  }

  /** Runs `work` after every write, unless the other side reads no more. */
  async close(work: () => Promise<void>): Promise<void> {
    await this.#inTurn(async () => {
      if (!this.#ended) await work();
      this.stop();
    });
  }

  /** The other side reads no more. */
  stop(): void {
    this.#ended = true;
    this.#wake?.();
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(work);
    this.#last = turn.catch(() => undefined);
    return turn;
  }

  async #takeCredit(wantedBytes: number): Promise<number> {
    while (this.#creditBytes === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    if (this.#ended) return 0;
    const bytes = Math.min(wantedBytes, this.#creditBytes);
    this.#creditBytes -= bytes;
    return bytes;
  }
}

/** Sends values of which only the latest counts. While one is being sent, a later one replaces the one that waits. */
export class LatestValue<Value> {
  readonly #send: (value: Value) => Promise<void>;
  #waiting: { readonly value: Value } | null = null;
  #isSending = false;

  /** @param send when it rejects, the value is dropped */
  constructor(send: (value: Value) => Promise<void>) {
    this.#send = send;
  }

  set(value: Value): void {
    this.#waiting = { value };
    if (!this.#isSending) void this.#sendAll();
  }

  async #sendAll(): Promise<void> {
    this.#isSending = true;
    for (let next = this.#waiting; next !== null; next = this.#waiting) {
      this.#waiting = null;
      await this.#send(next.value).catch(() => undefined);
    }
    this.#isSending = false;
  }
}

/** The session of a disk's listing. The window bounds the bytes that wait for the reader. */
export class IndexSession implements Session {
  readonly class = "task";
  readonly #inbound: InboundStream;

  constructor(window: ReceiveWindow) {
    this.#inbound = new InboundStream(window);
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
