import { ApiError } from "../domain/errors.ts";

/** `type/subtype` of a JSON body; parameters such as the character set may follow. */
const JSON_CONTENT_TYPE = /^application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;

/**
 * Reads a JSON body that is at most `limitBytes` long, whether or not it says its length beforehand.
 * @throws ApiError `validation_error` or `payload_too_large`
 */
export async function readJson(request: Request, limitBytes: number): Promise<unknown> {
  const contentType = request.headers.get("content-type");
  if (contentType !== null && !JSON_CONTENT_TYPE.test(contentType)) {
    throw new ApiError("validation_error", "Content-Type must be application/json", { field: "content-type" });
  }
  const bytes = await readAll(request, limitBytes);
  const text = decode(bytes);
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

/** Refuses a body that announces more than `limitBytes`, before any of it is read. */
export function checkAnnouncedLength(request: Request, limitBytes: number): void {
  const announced = Number(request.headers.get("content-length") ?? 0);
  if (announced > limitBytes) throw tooLarge(limitBytes);
}

async function readAll(request: Request, limitBytes: number): Promise<Uint8Array> {
  checkAnnouncedLength(request, limitBytes);
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of bodyStream(request)) {
    length += chunk.byteLength;
    if (length > limitBytes) throw tooLarge(limitBytes);
    chunks.push(chunk.slice());
  }
  return Buffer.concat(chunks, length);
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
      const chunks = body?.[Symbol.asyncIterator]();
      let last: Uint8Array<ArrayBuffer> | null = null;
      return {
        async next() {
          if (last !== null) release(last);
          last = null;
          const step = await chunks?.next().catch(endedEarly);
          if (step === undefined || step.done === true) return { done: true, value: undefined };
          last = step.value;
          return { done: false, value: step.value };
        },
        async return() {
          await chunks?.return?.();
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

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("validation_error", "the body must be UTF-8");
    throw error;
  }
}

function tooLarge(limitBytes: number): ApiError {
  return new ApiError("payload_too_large", `the body must be at most ${limitBytes} bytes`, {
    limit_bytes: limitBytes,
  });
}
