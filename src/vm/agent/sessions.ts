import { ByteBlocks } from "../../domain/byte-blocks.ts";
import { AgentError, AgentProtocolError } from "./errors.ts";
import { type Frame, viewOf } from "./frames.ts";
import { AgentFrame, INPUT_WINDOW_BYTES_INITIAL, INPUT_WINDOW_BYTES_MAX, Stream } from "./protocol.ts";

/** Text of the guest in an error or a log line, in `bytes`. */
const TEXT_BYTES_MAX = 1024;

/** What a session takes room of in the agent. */
export type SessionClass = "process" | "task" | "connection";

/** One request under way. */
export interface Session {
  readonly class: SessionClass;
  /** true: its DONE is the last frame until the next SYNC */
  readonly holds?: boolean;
  /** Takes a frame; true when it was the last one. @throws AgentProtocolError */
  onFrame(frame: Frame): boolean;
  /** Ends the session: no frame will come any more. */
  fail(error: Error): void;
}

/** Gives the agent credit for more bytes of a stream. */
export type Grant = (stream: number, bytes: number) => void;

/** Text of the guest for people: short, and without control characters that a terminal obeys. */
export function guestText(bytes: Uint8Array): string {
  const text = Buffer.from(bytes.subarray(0, TEXT_BYTES_MAX)).toString("utf8");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is replaced.
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, "?");
}

export function unexpected(frame: Frame): AgentProtocolError {
  return new AgentProtocolError(`a frame of type ${frame.type} and ${frame.payload.byteLength} bytes out of place`);
}

/** The payload, which has exactly that many bytes. @throws AgentProtocolError */
export function checkLength(frame: Frame, bytes: number): DataView {
  if (frame.payload.byteLength !== bytes) throw unexpected(frame);
  return viewOf(frame.payload);
}

/** The payload of an ERROR. @throws AgentProtocolError */
export function parseError(frame: Frame): AgentError {
  if (frame.payload.byteLength < 8) throw unexpected(frame);
  const view = viewOf(frame.payload);
  if (view.getUint32(4, true) !== 0) throw unexpected(frame);
  return new AgentError(view.getUint32(0, true), guestText(frame.payload.subarray(8)));
}

/** A request that one frame answers, with a number in it. */
export class ReplySession implements Session {
  readonly class = "task";
  readonly holds: boolean;
  readonly answer: Promise<bigint>;
  /** true once nothing more needs to be sent for the request */
  ended = false;
  readonly #type: number;
  readonly #settle = Promise.withResolvers<bigint>();

  /**
   * @param type of the answer
   * @param holds whether the answer is the last frame until the next SYNC
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

/** A scratch that stands still, as one session. */
export class QuiesceSession implements Session {
  readonly class = "task";
  readonly #still = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<bigint>();
  over = false;
  #isStill = false;

  constructor() {
    // A caller may wait for one of them only.
    this.#still.promise.catch(() => undefined);
    this.#ended.promise.catch(() => undefined);
  }

  get still(): Promise<void> {
    return this.#still.promise;
  }

  /** ns that it stood still */
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

/** How much of a stream the agent may still send. */
export class ReceiveWindow {
  readonly #grant: (bytes: number) => void;
  readonly #sizeBytesMax: number;
  #sizeBytes: number;
  #creditBytes: number;
  #consumedBytes = 0;

  /** @param sizeBytesMax what the window grows to once as much was read as it had at first */
  constructor(grant: (bytes: number) => void, sizeBytes: number, sizeBytesMax = sizeBytes) {
    this.#grant = grant;
    this.#sizeBytes = sizeBytes;
    this.#sizeBytesMax = sizeBytesMax;
    this.#creditBytes = sizeBytes;
  }

  /** @throws AgentProtocolError for more than there is credit for */
  receive(bytes: number): void {
    if (bytes > this.#creditBytes) throw new AgentProtocolError("output beyond its credit");
    this.#creditBytes -= bytes;
  }

  consume(bytes: number): void {
    this.#consumedBytes += bytes;
    // In pieces of half a window, so that a frame of ours answers many of theirs.
    if (this.#consumedBytes < this.#sizeBytes / 2) return;
    const grantedBytes = this.#consumedBytes + this.#sizeBytesMax - this.#sizeBytes;
    this.#sizeBytes = this.#sizeBytesMax;
    this.#creditBytes += grantedBytes;
    this.#grant(grantedBytes);
    this.#consumedBytes = 0;
  }
}

/** Bytes of the guest that wait for their reader, who bounds them by the window. */
export class InboundStream {
  readonly #window: ReceiveWindow;
  readonly #pending = new ByteBlocks();
  #outcome: { readonly error: Error | null } | null = null;
  #wake: (() => void) | null = null;

  constructor(window: ReceiveWindow) {
    this.#window = window;
  }

  /** @throws AgentProtocolError for more than there is credit for */
  push(bytes: Uint8Array): void {
    this.#window.receive(bytes.byteLength);
    this.#pending.push(bytes);
    this.#wake?.();
  }

  /** The end behind what was pushed; the first one counts. */
  finish(error: Error | null): void {
    this.#outcome ??= { error };
    this.#wake?.();
  }

  /** Chunks as they come, for one reader. @throws the error that the stream ended with */
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

/** Sends bytes as the agent gives credit, one write after the other. */
export class OutboundStream {
  readonly #send: (bytes: Uint8Array) => Promise<void>;
  readonly #pieceBytesMax: number;
  readonly #stream: number;
  #creditBytes = INPUT_WINDOW_BYTES_INITIAL;
  /** what was called before: writes keep their order */
  #last: Promise<unknown> = Promise.resolve();
  #ended = false;
  #wake: (() => void) | null = null;

  constructor(stream: number, pieceBytesMax: number, send: (bytes: Uint8Array) => Promise<void>) {
    this.#stream = stream;
    this.#pieceBytesMax = pieceBytesMax;
    this.#send = send;
  }

  /** Takes a WINDOW. @throws AgentProtocolError for one of another stream, or for more credit than there can be */
  credit(frame: Frame): void {
    const view = checkLength(frame, 8);
    const bytes = view.getUint32(4, true);
    if (view.getUint32(0, true) !== this.#stream || bytes > INPUT_WINDOW_BYTES_MAX - this.#creditBytes)
      throw unexpected(frame);
    this.#creditBytes += bytes;
    this.#wake?.();
  }

  /** Resolves when all bytes are sent: true; or false when nobody takes them any more. */
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

  /** Does `work` behind every write, unless nobody takes anything any more. */
  async close(work: () => Promise<void>): Promise<void> {
    await this.#inTurn(async () => {
      if (!this.#ended) await work();
      this.stop();
    });
  }

  /** Nobody takes anything any more. */
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

/** The listing of a disk. What the reader has not taken yet is bounded by the window. */
export class IndexSession implements Session {
  readonly class = "task";
  readonly #inbound: InboundStream;

  constructor(window: ReceiveWindow) {
    this.#inbound = new InboundStream(window);
  }

  onFrame(frame: Frame): boolean {
    if (frame.type === AgentFrame.output) {
      if (frame.payload.byteLength < 4 || viewOf(frame.payload).getUint32(0, true) !== Stream.stdout)
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

  /** Chunks as they come. Who stops early must end the machine: the agent then waits for credit for ever. */
  chunks(): AsyncGenerator<Uint8Array> {
    return this.#inbound.chunks();
  }
}
