import { ApiError } from "../../domain/errors.ts";
import { untilAborted } from "../../system/waiting.ts";
import { JsonStructure } from "./json-structure.ts";
import { MEDIUM_BODY_BYTES_MAX } from "./room.ts";

/** `type/subtype` of a JSON body; parameters such as the character set may follow. */
const JSON_CONTENT_TYPE = /^application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;

/** A body of at most this many `bytes` needs no room: it costs little more than its connection. */
const SMALL_BODY_BYTES_MAX = 16_384;
/** A body occupies room that others wait for, so it must arrive within this time plus a time for its size. */
const BODY_MS_MAX = 30_000;
const BODY_BYTES_PER_MS_MIN = 64;
const bodyMsMax = (bytes: number): number => BODY_MS_MAX + bytes / BODY_BYTES_PER_MS_MIN;

export interface ReadOptions {
  readonly limitBytes: number;
  /**
   * Waits for room in memory for a body of `bytes`, which is held until the request ends. A body without an announced
   * length needs a second call when it turns out to be large, and so does a body with many values. Absent: all bodies are
   * small.
   */
  readonly makeRoom?: (bytes: number) => Promise<void>;
  /** longest time for the arrival of a body that needs no room, in `milliseconds`; absent: no limit */
  readonly smallMsMax?: number;
  /** longest time in which a body of `bytes` must arrive once it has room, in `milliseconds` */
  readonly msMax?: (bytes: number) => number;
  /** true: an empty body counts as an empty object */
  readonly mayBeEmpty?: boolean;
}

/**
 * Reads a JSON body of at most `limitBytes`, whether or not its length is announced, with a bounded number of values.
 * @throws ApiError `validation_error` or `payload_too_large`; the error of `makeRoom`
 */
export async function readJson(request: Request, options: ReadOptions): Promise<unknown> {
  const contentType = request.headers.get("content-type");
  if (contentType !== null && !JSON_CONTENT_TYPE.test(contentType)) {
    throw new ApiError("validation_error", "Content-Type must be application/json", { field: "content-type" });
  }
  const text = decode(await readAll(request, options));
  if (text === "" && options.mayBeEmpty === true) return {};
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    // SyntaxError: malformed JSON; RangeError: nesting too deep for the parser's stack.
    if (error instanceof SyntaxError || error instanceof RangeError) {
      throw new ApiError("validation_error", "the body must be valid JSON");
    }
    throw error;
  }
}

/** The announced length of a body, in `bytes`; 0 if none is announced. */
export function announcedLength(request: Request): number {
  return Number(request.headers.get("content-length") ?? 0);
}

async function readAll(request: Request, options: ReadOptions): Promise<Uint8Array<ArrayBuffer>> {
  const { limitBytes, makeRoom, smallMsMax, msMax = bodyMsMax } = options;
  const announcedBytes = announcedLength(request);
  if (announcedBytes > limitBytes) throw tooLarge(limitBytes);
  const late = new AbortController();
  let deadline: Timer | undefined;
  using _deadline = { [Symbol.dispose]: () => clearTimeout(deadline) };
  if (smallMsMax !== undefined) deadline = setTimeout(() => late.abort(tooSlow()), smallMsMax);
  let roomBytes = SMALL_BODY_BYTES_MAX;
  const requireRoom = async (bytes: number): Promise<void> => {
    if (bytes <= roomBytes) return;
    const step = bytes > MEDIUM_BODY_BYTES_MAX ? limitBytes : Math.min(MEDIUM_BODY_BYTES_MAX, limitBytes);
    roomBytes = announcedBytes > 0 ? announcedBytes : step;
    await makeRoom?.(roomBytes);
    clearTimeout(deadline);
    deadline = setTimeout(() => late.abort(tooSlow()), msMax(roomBytes));
  };
  await requireRoom(announcedBytes);
  const body = new BodyBuffer(announcedBytes);
  const structure = new JsonStructure();
  const chunks = bodyStream(request)[Symbol.asyncIterator]();
  // Not awaited, because the response does not depend on it.
  using _left = { [Symbol.dispose]: () => void chunks.return?.().catch(() => undefined) };
  for (;;) {
    const step = await untilAborted(chunks.next(), late.signal);
    if (step.done === true) break;
    const lengthBytes = body.lengthBytes + step.value.byteLength;
    if (lengthBytes > limitBytes) throw tooLarge(limitBytes);
    await requireRoom(lengthBytes);
    structure.take(step.value);
    body.push(step.value);
  }
  if (structure.memoryBytes > roomBytes) await makeRoom?.(structure.memoryBytes);
  return body.bytes();
}

/** Collects a body in one buffer, which doubles its size as needed when the length was not announced. */
class BodyBuffer {
  lengthBytes = 0;
  #bytes: Uint8Array<ArrayBuffer>;

  constructor(announcedBytes: number) {
    this.#bytes = new Uint8Array(announcedBytes);
  }

  push(chunk: Uint8Array): void {
    const lengthBytes = this.lengthBytes + chunk.byteLength;
    if (lengthBytes > this.#bytes.byteLength) {
      const capacityBytes = Math.max(lengthBytes, 2 * this.#bytes.byteLength);
      this.#bytes = new Uint8Array(this.#bytes.buffer.transfer(capacityBytes));
    }
    this.#bytes.set(chunk, this.lengthBytes);
    this.lengthBytes = lengthBytes;
  }

  bytes(): Uint8Array<ArrayBuffer> {
    return this.#bytes.subarray(0, this.lengthBytes);
  }
}

/**
 * The body as a stream of chunks; empty for a request without a body. A chunk is valid only until the next one is
 * requested: its memory is freed then, because the garbage collector is too slow for a large upload.
 * @throws ApiError `validation_error` when the client disconnects or stops sending before the end
 */
export function bodyStream(request: Request): AsyncIterable<Uint8Array> {
  const { body } = request;
  return {
    [Symbol.asyncIterator]() {
      const reader = body?.getReader();
      let last: Uint8Array<ArrayBuffer> | null = null;
      return {
        async next() {
          if (last !== null) release(last);
          last = null;
          const step = await reader?.read().catch(endedEarly);
          if (step === undefined || step.done === true) return { done: true, value: undefined };
          last = step.value;
          return { done: false, value: step.value };
        },
        async return() {
          await reader?.cancel();
          return { done: true, value: undefined };
        },
      };
    },
  };
}

/** Frees the memory of a chunk by detaching its buffer, unless the buffer has other chunks, too. */
function release(chunk: Uint8Array<ArrayBuffer>): void {
  if (chunk.byteLength === chunk.buffer.byteLength) chunk.buffer.transfer(0);
}

function endedEarly(error: unknown): never {
  if (!(error instanceof Error && error.name === "AbortError")) throw error;
  throw new ApiError("validation_error", "the body ended early", {}, { cause: error });
}

/** Decodes UTF-8, and frees the memory of `bytes` without waiting for the garbage collector. */
function decode(bytes: Uint8Array<ArrayBuffer>): string {
  using _freed = { [Symbol.dispose]: () => void bytes.buffer.transfer(0) };
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("validation_error", "the body must be UTF-8");
    throw error;
  }
}

function tooSlow(): ApiError {
  return new ApiError("validation_error", "the body arrived too slowly for its size");
}

function tooLarge(limitBytes: number): ApiError {
  return new ApiError("payload_too_large", `the body must be at most ${limitBytes} bytes`, {
    limit_bytes: limitBytes,
  });
}
