import { ApiError } from "../../../domain/errors.ts";
import { untilAborted } from "../../../system/waiting.ts";
import { bodyStream } from "../../body/body.ts";
import { JsonStructure } from "../../body/json-structure.ts";
import { RpcError } from "./errors.ts";
import { parseMessage, type RpcMessage } from "./message.ts";

/** A frame is a byte of flags, the length of the message as a big-endian u32, and the message as JSON. */
const HEAD_BYTES = 5;
const Flag = { compressed: 1, end: 2 } as const;

/** A message that arrives needs no room up to this size, and its buffer has this size at first, in `bytes`. */
const SMALL_BYTES_MAX = 16_384;
/** A frame must arrive within this time from its first byte, plus a time for its size. */
const FRAME_MS_MAX = 30_000;
const FRAME_BYTES_PER_MS_MIN = 64;

/** The frame of a message. */
export function messageFrame(message: object): Uint8Array<ArrayBuffer> {
  return frame(0, message);
}

/** The last frame of a stream. */
export function endFrame(error?: object): Uint8Array<ArrayBuffer> {
  return frame(Flag.end, error === undefined ? {} : { error });
}

function frame(flags: number, message: object): Uint8Array<ArrayBuffer> {
  const text = JSON.stringify(message);
  const lengthBytes = Buffer.byteLength(text);
  const bytes = Buffer.allocUnsafeSlow(HEAD_BYTES + lengthBytes);
  bytes[0] = flags;
  bytes.writeUInt32BE(lengthBytes, 1);
  bytes.write(text, HEAD_BYTES, "utf8");
  return bytes;
}

export interface FrameOptions {
  /** largest message, in `bytes` */
  readonly bytesMax: number;
  /** Waits for room in memory for a message of `bytes`, before it is read. The room is given back with the next message. */
  readonly makeRoom: (bytes: number) => Promise<Disposable>;
  /** ends the wait for bytes */
  readonly signal: AbortSignal;
}

/** Reads the messages of a request. Its memory is bounded by what has arrived, whatever a frame announces. Ending it is idempotent. */
export class FrameReader implements AsyncDisposable {
  readonly #chunks: AsyncIterator<Uint8Array, unknown, undefined>;
  readonly #options: FrameOptions;
  /** the part of the last chunk that was not read */
  #rest: Uint8Array = new Uint8Array(0);
  /** of the last message */
  #room: Disposable | null = null;

  constructor(request: Request, options: FrameOptions) {
    this.#chunks = bodyStream(request)[Symbol.asyncIterator]();
    this.#options = options;
  }

  /**
   * The only message of a request. @throws RpcError; as `makeRoom` does; the reason of `signal`
   */
  async single(): Promise<RpcMessage> {
    const message = await this.next();
    if (message === null) throw new RpcError("invalid_argument", "the request has no message");
    // The message is in use until the end.
    if (await this.#hasMore()) throw new RpcError("invalid_argument", "the request has more than one message");
    return message;
  }

  /** The next message; null at the end. @throws as `single` does */
  async next(): Promise<RpcMessage | null> {
    this.#room?.[Symbol.dispose]();
    this.#room = null;
    if (!(await this.#hasMore())) return null;
    const late = new AbortController();
    const start = (bytes: number) =>
      setTimeout(() => late.abort(tooSlow()), FRAME_MS_MAX + bytes / FRAME_BYTES_PER_MS_MIN);
    let timer = start(0);
    using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
    const signal = AbortSignal.any([late.signal, this.#options.signal]);
    const head = Buffer.from(await this.#take(HEAD_BYTES, signal));
    const lengthBytes = head.readUInt32BE(1);
    this.#check(head[0] ?? 0, lengthBytes);
    if (lengthBytes > SMALL_BYTES_MAX) {
      this.#room = await this.#options.makeRoom(lengthBytes);
      clearTimeout(timer);
      timer = start(lengthBytes);
    }
    return parseMessage(await this.#take(lengthBytes, signal, new JsonStructure()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#room?.[Symbol.dispose]();
    await this.#chunks.return?.();
  }

  #check(flags: number, lengthBytes: number): void {
    if ((flags & Flag.compressed) !== 0) throw new RpcError("unimplemented", "compressed messages are not supported");
    if (flags !== 0) throw new RpcError("invalid_argument", `a message must not have the flags ${flags}`);
    const { bytesMax } = this.#options;
    if (lengthBytes > bytesMax) {
      throw new RpcError(
        "resource_exhausted",
        `a message must have at most ${bytesMax} bytes: this has ${lengthBytes}`,
      );
    }
  }

  async #hasMore(): Promise<boolean> {
    return this.#rest.byteLength > 0 || (await this.#more(this.#options.signal));
  }

  /** Waits for the next chunk that is not empty. Returns false at the end. */
  async #more(signal: AbortSignal): Promise<boolean> {
    do {
      const step = await untilAborted(this.#chunks.next(), signal).catch(endedEarly);
      if (step.done === true) return false;
      this.#rest = step.value;
    } while (this.#rest.byteLength === 0);
    return true;
  }

  /** Copies the next `bytes`, which `structure` checks as they arrive. */
  async #take(bytes: number, signal: AbortSignal, structure?: JsonStructure): Promise<Uint8Array<ArrayBuffer>> {
    let bytesRead = new Uint8Array(Math.min(bytes, SMALL_BYTES_MAX));
    for (let at = 0; at < bytes; ) {
      if (this.#rest.byteLength === 0 && !(await this.#more(signal))) {
        throw new RpcError("invalid_argument", "the request ended within a message");
      }
      const part = this.#rest.subarray(0, bytes - at);
      this.#rest = this.#rest.subarray(part.byteLength);
      structure?.take(part);
      if (at + part.byteLength > bytesRead.byteLength) {
        const capacityBytes = Math.min(bytes, Math.max(at + part.byteLength, 2 * bytesRead.byteLength));
        bytesRead = new Uint8Array(bytesRead.buffer.transfer(capacityBytes));
      }
      bytesRead.set(part, at);
      at += part.byteLength;
    }
    return bytesRead;
  }
}

function endedEarly(error: unknown): never {
  if (error instanceof ApiError) throw new RpcError("canceled", error.message, { cause: error });
  throw error;
}

function tooSlow(): RpcError {
  return new RpcError("deadline_exceeded", "the message arrived too slowly for its size");
}
