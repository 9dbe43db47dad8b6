import { ApiError } from "../domain/errors.ts";
import { untilAborted } from "../system/waiting.ts";
import { MEDIUM_BODY_BYTES_MAX } from "./body-room.ts";

/** `type/subtype` of a JSON body; parameters such as the character set may follow. */
const JSON_CONTENT_TYPE = /^application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;

/** A body of up to so many `bytes` is read without asking for room: it costs little more than its connection. */
const SMALL_BODY_BYTES_MAX = 16_384;
/** A body holds room that others wait for: it has to come within this time and that for its size. */
const BODY_MS_MAX = 30_000;
const BODY_BYTES_PER_MS_MIN = 64;
const bodyMsMax = (bytes: number): number => BODY_MS_MAX + bytes / BODY_BYTES_PER_MS_MIN;

export interface ReadOptions {
  readonly limitBytes: number;
  /**
   * Resolves when there is room in memory for a body of so many bytes, until it has been worked on. A body that does not
   * say its length asks a second time when it turns out to be a large one.
   */
  readonly makeRoom: (bytes: number) => Promise<void>;
  /** how long a body of so many bytes may take to come once there is room for it, in `milliseconds` */
  readonly msMax?: (bytes: number) => number;
}

/**
 * Reads a JSON body that is at most `limitBytes` long, whether or not it says its length beforehand.
 * @throws ApiError `validation_error` or `payload_too_large`; what `makeRoom` throws
 */
export async function readJson(request: Request, options: ReadOptions): Promise<unknown> {
  const contentType = request.headers.get("content-type");
  if (contentType !== null && !JSON_CONTENT_TYPE.test(contentType)) {
    throw new ApiError("validation_error", "Content-Type must be application/json", { field: "content-type" });
  }
  const text = decode(await readAll(request, options));
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    // SyntaxError is bad JSON; RangeError is nesting that the parser's stack cannot hold.
    if (error instanceof SyntaxError || error instanceof RangeError) {
      throw new ApiError("validation_error", "the body must be valid JSON");
    }
    throw error;
  }
}

/** Length that a body announces, in `bytes`; 0 when it announces none. */
export function announcedLength(request: Request): number {
  return Number(request.headers.get("content-length") ?? 0);
}

async function readAll(request: Request, options: ReadOptions): Promise<Uint8Array<ArrayBuffer>> {
  const { limitBytes, makeRoom, msMax = bodyMsMax } = options;
  const announcedBytes = announcedLength(request);
  if (announcedBytes > limitBytes) throw tooLarge(limitBytes);
  const late = new AbortController();
  let deadline: Timer | undefined;
  using _deadline = { [Symbol.dispose]: () => clearTimeout(deadline) };
  let roomBytes = SMALL_BODY_BYTES_MAX;
  const requireRoom = async (bytes: number): Promise<void> => {
    if (bytes <= roomBytes) return;
    const step = bytes > MEDIUM_BODY_BYTES_MAX ? limitBytes : Math.min(MEDIUM_BODY_BYTES_MAX, limitBytes);
    roomBytes = announcedBytes > 0 ? announcedBytes : step;
    await makeRoom(roomBytes);
    clearTimeout(deadline);
    deadline = setTimeout(() => late.abort(tooSlow()), msMax(roomBytes));
  };
  await requireRoom(announcedBytes);
  const body = new BodyBuffer(announcedBytes);
  const chunks = bodyStream(request)[Symbol.asyncIterator]();
  // Not waited for: the answer does not depend on it.
  using _left = { [Symbol.dispose]: () => void chunks.return?.().catch(() => undefined) };
  for (;;) {
    const step = await untilAborted(chunks.next(), late.signal);
    if (step.done === true) return body.bytes();
    const lengthBytes = body.lengthBytes + step.value.byteLength;
    if (lengthBytes > limitBytes) throw tooLarge(limitBytes);
    await requireRoom(lengthBytes);
    body.push(step.value);
  }
}

/** Collects a body in one piece of memory; one that did not announce its length grows by doubling. */
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
 * The body as it comes; nothing for a request without one. A chunk is good only until the next one is asked for: its
 * memory is given back at once, because a large upload would otherwise outrun the garbage collector.
 * @throws ApiError `validation_error` when the client leaves or falls silent before the end
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

/** Moves the chunk's memory into nothing, unless other chunks lie in it too. */
function release(chunk: Uint8Array<ArrayBuffer>): void {
  if (chunk.byteLength === chunk.buffer.byteLength) chunk.buffer.transfer(0);
}

function endedEarly(error: unknown): never {
  if (!(error instanceof Error && error.name === "AbortError")) throw error;
  throw new ApiError("validation_error", "the body ended early", {}, { cause: error });
}

/** Takes the memory of the bytes, too, which the garbage collector would leave for long. */
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
  return new ApiError("validation_error", "the body came too slowly for its size");
}

function tooLarge(limitBytes: number): ApiError {
  return new ApiError("payload_too_large", `the body must be at most ${limitBytes} bytes`, {
    limit_bytes: limitBytes,
  });
}
