import { ByteBlocks } from "../../domain/bytes/byte-blocks.ts";
import { AgentProtocolError } from "./errors.ts";
import type { Frame } from "./frames.ts";
import { checkLength, unexpected } from "./payload.ts";
import { INPUT_WINDOW_BYTES_INITIAL, INPUT_WINDOW_BYTES_MAX } from "./protocol.ts";
import { fromBase64, type ReceivedRecord, type SentRecord, toBase64 } from "./record.ts";

interface WindowOptions {
  readonly sizeBytes: number;
  /** size to which the window grows once the reader has consumed half of the initial size; default: it does not grow */
  readonly sizeBytesMax?: number;
  /** bytes that are granted together; default: half of the window */
  readonly stepBytes?: number;
  /** called before the window grows by a number of bytes; after a result of false, it is called again later */
  readonly mayGrow?: (bytes: number) => boolean;
  /** an earlier window to continue */
  readonly from?: ReceivedRecord | undefined;
}

/** The credit of one stream of the agent. */
export class ReceiveWindow {
  readonly #grant: (bytes: number) => void;
  readonly #sizeBytesMax: number;
  readonly #stepBytes: number | undefined;
  readonly #mayGrow: (bytes: number) => boolean;
  #sizeBytes: number;
  #creditBytes: number;
  #consumedBytes: number;
  #receivedBytes: number;

  constructor(
    grant: (bytes: number) => void,
    { sizeBytes, sizeBytesMax = sizeBytes, stepBytes, mayGrow = () => true, from }: WindowOptions,
  ) {
    this.#grant = grant;
    this.#sizeBytesMax = sizeBytesMax;
    this.#stepBytes = stepBytes;
    this.#mayGrow = mayGrow;
    this.#sizeBytes = from?.sizeBytes ?? sizeBytes;
    this.#creditBytes = from?.creditBytes ?? sizeBytes;
    this.#consumedBytes = from?.consumedBytes ?? 0;
    this.#receivedBytes = from?.receivedBytes ?? 0;
  }

  /** Bytes that were received and not consumed. */
  get waitingBytes(): number {
    return this.#sizeBytes - this.#creditBytes - this.#consumedBytes;
  }

  record(): ReceivedRecord {
    return {
      sizeBytes: this.#sizeBytes,
      creditBytes: this.#creditBytes,
      consumedBytes: this.#consumedBytes,
      receivedBytes: this.#receivedBytes,
    };
  }

  /** @throws AgentProtocolError when the agent sent more than its credit */
  receive(bytes: number): void {
    if (bytes > this.#creditBytes) throw new AgentProtocolError("the agent sent more than its credit");
    this.#creditBytes -= bytes;
    this.#receivedBytes += bytes;
  }

  consume(bytes: number): void {
    this.#consumedBytes += bytes;
    // Granted in steps, so that one WINDOW frame answers many frames of the agent.
    if (this.#consumedBytes < (this.#stepBytes ?? this.#sizeBytes / 2)) return;
    const growthBytes = this.#sizeBytesMax - this.#sizeBytes;
    const grows = growthBytes > 0 && this.#mayGrow(growthBytes);
    const grantedBytes = this.#consumedBytes + (grows ? growthBytes : 0);
    if (grows) this.#sizeBytes = this.#sizeBytesMax;
    this.#creditBytes += grantedBytes;
    this.#consumedBytes = 0;
    this.#grant(grantedBytes);
  }
}

/** Readers of a command's output that the command waits for. */
export interface SlowReaders {
  /** resolves when all of them accept more; undefined when they do now */
  readonly drained: Promise<void> | undefined;
}

/** Output that is stored at one moment: `bytes` of each stream. */
interface Unstored {
  readonly stored: Promise<void>;
  readonly bytes: Map<number, number>;
  isStored: boolean;
}

/**
 * The windows of a command's outputs. Credit is granted for a beginning of each stream that is stored, so that the agent can
 * forget it, and that the slow readers have read.
 */
export class OutputCredit {
  readonly #windows: ReadonlyMap<number, ReceiveWindow>;
  readonly #readers: SlowReaders;
  /** in the order of the output */
  readonly #unstored: Unstored[] = [];
  /** stored output that waits for readers, `bytes` of each stream */
  readonly #unread = new Map<number, number>();
  /** the promise of the readers that `#unread` waits for */
  #awaited: Promise<void> | undefined;
  #isOver = false;

  constructor(windows: ReadonlyMap<number, ReceiveWindow>, readers: SlowReaders) {
    this.#windows = windows;
    this.#readers = readers;
  }

  /** @throws Error for a stream that does not exist */
  window(stream: number): ReceiveWindow {
    const window = this.#windows.get(stream);
    if (window === undefined) throw new Error("a stream without a window");
    return window;
  }

  /** @param stored resolves when the next `bytes` of a stream are stored; undefined: they are */
  take(stream: number, bytes: number, stored: Promise<void> | undefined): void {
    let last = this.#unstored.at(-1);
    if (stored !== undefined && last?.stored !== stored) {
      const next: Unstored = { stored, bytes: new Map(), isStored: false };
      this.#unstored.push(next);
      void stored.then(() => this.#stored(next));
      last = next;
    }
    if (last === undefined) this.#release(stream, bytes);
    else last.bytes.set(stream, (last.bytes.get(stream) ?? 0) + bytes);
  }

  /** To be called when the command has ended: it gets no more credit. */
  stop(): void {
    this.#isOver = true;
  }

  #stored(unstored: Unstored): void {
    unstored.isStored = true;
    for (let first = this.#unstored[0]; first?.isStored === true; first = this.#unstored[0]) {
      this.#unstored.shift();
      for (const [stream, bytes] of first.bytes) this.#release(stream, bytes);
    }
  }

  #release(stream: number, bytes: number): void {
    if (this.#isOver) return;
    if (this.#readers.drained === undefined) {
      this.window(stream).consume(bytes);
      return;
    }
    this.#unread.set(stream, (this.#unread.get(stream) ?? 0) + bytes);
    this.#awaitReaders(this.#readers.drained);
  }

  #awaitReaders(drained: Promise<void>): void {
    if (this.#awaited === drained) return;
    this.#awaited = drained;
    void drained.then(() => {
      if (this.#awaited !== drained) return;
      this.#awaited = undefined;
      const unread = [...this.#unread];
      this.#unread.clear();
      for (const [stream, bytes] of unread) this.#release(stream, bytes);
    });
  }
}

/** Bytes of the guest that wait for their reader. The window bounds them. */
export class InboundStream {
  readonly #window: ReceiveWindow;
  readonly #pending = new ByteBlocks();
  #outcome: { readonly error: Error | null } | null = null;
  #wake: (() => void) | null = null;

  /** @param waiting bytes of an earlier stream which wait for their reader, in base64 */
  constructor(window: ReceiveWindow, waiting = "") {
    this.#window = window;
    this.#pending.push(fromBase64(waiting));
  }

  /** Number of bytes that wait. */
  get waitingBytes(): number {
    return this.#pending.byteLength;
  }

  /** The bytes that wait, in base64. */
  get waiting(): string {
    return toBase64(Buffer.concat(this.#pending.blocks()));
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

/** Sends the bytes that `take` returns, unless there are none. `take` is called when they can be sent at once. */
export type SendPiece = (take: () => Uint8Array) => Promise<void>;

interface OutboundOptions {
  readonly stream: number;
  readonly pieceBytesMax: number;
  /** an earlier stream to continue */
  readonly from?: SentRecord | undefined;
}

/** Sends bytes within the credit that the agent grants, one write after another. */
export class OutboundStream {
  readonly #send: SendPiece;
  readonly #options: OutboundOptions;
  #creditBytes: number;
  #sentBytes: number;
  /** the previous write: writes keep their order */
  #last: Promise<unknown> = Promise.resolve();
  #ended: boolean;
  #wake: (() => void) | null = null;

  constructor(send: SendPiece, options: OutboundOptions) {
    this.#send = send;
    this.#options = options;
    const { from } = options;
    this.#creditBytes = from?.creditBytes ?? INPUT_WINDOW_BYTES_INITIAL;
    this.#sentBytes = from?.sentBytes ?? 0;
    this.#ended = from?.isOver ?? false;
  }

  /** Bytes that were sent. */
  get sentBytes(): number {
    return this.#sentBytes;
  }

  record(): SentRecord {
    return { creditBytes: this.#creditBytes, sentBytes: this.#sentBytes, isOver: this.#ended };
  }

  /** Handles a WINDOW. @throws AgentProtocolError when it is for another stream or exceeds the largest credit */
  credit(frame: Frame): void {
    const view = checkLength(frame, 8);
    const bytes = view.getUint32(4, true);
    const isOther = view.getUint32(0, true) !== this.#options.stream;
    if (isOther || bytes > INPUT_WINDOW_BYTES_MAX - this.#creditBytes) throw unexpected(frame);
    this.#creditBytes += bytes;
    this.#wake?.();
  }

  /** Resolves to true when all bytes are sent, to false when the other side reads no more. */
  write(bytes: Uint8Array): Promise<boolean> {
    return this.#inTurn(async () => {
      let rest = bytes;
      while (rest.byteLength > 0 && (await this.#hasCredit())) {
        await this.#send(() => {
          const piece = this.#take(rest);
          rest = rest.subarray(piece.byteLength);
          return piece;
        });
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

  /** The beginning of `bytes` that there is credit for; it counts as sent. */
  #take(bytes: Uint8Array): Uint8Array {
    const piece = bytes.subarray(0, this.#ended ? 0 : Math.min(this.#creditBytes, this.#options.pieceBytesMax));
    this.#creditBytes -= piece.byteLength;
    this.#sentBytes += piece.byteLength;
    return piece;
  }

  /** Waits for credit; false when the other side reads no more. */
  async #hasCredit(): Promise<boolean> {
    while (this.#creditBytes === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return !this.#ended;
  }
}

/** Sends values of which only the latest counts. While one is being sent, a later one replaces the one that waits. */
export class LatestValue<Value extends object> {
  readonly #send: (take: () => Value | null) => Promise<void>;
  #waiting: Value | null;
  #isSending = false;

  /**
   * @param send calls its argument when a value can be sent, and sends what it returns; when it rejects, the value is dropped
   * @param from a value that an earlier object did not send
   */
  constructor(send: (take: () => Value | null) => Promise<void>, from: Value | null = null) {
    this.#send = send;
    this.#waiting = from;
    if (from !== null) this.set(from);
  }

  /** The value that was not sent; null when there is none. */
  get waiting(): Value | null {
    return this.#waiting;
  }

  set(value: Value): void {
    this.#waiting = value;
    if (!this.#isSending) void this.#sendAll();
  }

  async #sendAll(): Promise<void> {
    this.#isSending = true;
    let isSent = true;
    const take = (): Value | null => {
      const value = this.#waiting;
      this.#waiting = null;
      isSent = true;
      return value;
    };
    while (this.#waiting !== null && isSent) {
      isSent = false;
      await this.#send(take).catch(() => undefined);
    }
    // A value that was not sent when the process ended is dropped.
    this.#waiting = null;
    this.#isSending = false;
  }
}
