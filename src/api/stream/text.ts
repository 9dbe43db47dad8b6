import type { Reply } from "../reply.ts";
import { directStream, type Endable } from "./direct.ts";

/** Size of the chunks of a text, in `bytes`. */
const CHUNK_BYTES = 65_536;
/** Most texts fit into the first buffer, in `bytes`. */
const FIRST_BYTES = 16_384;

/**
 * A reply with a text that may be too long for memory. A short text is sent in one piece. `held` is disposed when the text
 * ends, fails or is cancelled.
 */
export async function streamed(
  contentType: string,
  parts: AsyncGenerator<string | Uint8Array>,
  held?: Disposable,
): Promise<Reply> {
  using undo = new DisposableStack();
  undo.use(held);
  const headers = { "content-type": contentType, "cache-control": "no-store" };
  const chunks = new TextChunks(parts);
  const first = await chunks.next();
  if (chunks.isOver) return { status: 200, headers, body: first };
  undo.move();
  return { status: 200, headers, body: directStream(chunks.all(first), held) };
}

/** Joins the parts of a text into chunks, each of which is valid until the next one is requested. */
class TextChunks {
  readonly #parts: AsyncGenerator<string | Uint8Array>;
  /** grows to the size of a chunk and its last part */
  #bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);
  #used = 0;
  isOver = false;

  constructor(parts: AsyncGenerator<string | Uint8Array>) {
    this.#parts = parts;
  }

  /** The next chunk; empty at the end. */
  async next(): Promise<Uint8Array<ArrayBuffer>> {
    this.#used = 0;
    while (this.#used < CHUNK_BYTES && !this.isOver) {
      const step = await this.#parts.next();
      if (step.done === true) this.isOver = true;
      else this.#add(step.value);
    }
    return this.#bytes.subarray(0, this.#used);
  }

  /** All chunks; `next` has returned the first one. Ending them ends the parts, also before the first chunk. */
  all(first: Uint8Array<ArrayBuffer>): Endable {
    let given: Uint8Array<ArrayBuffer> | null = first;
    const next = async (): Promise<IteratorResult<Uint8Array<ArrayBuffer>>> => {
      const chunk = given ?? (await this.next());
      given = null;
      return chunk.byteLength > 0 ? { done: false, value: chunk } : { done: true, value: undefined };
    };
    const end = async (): Promise<IteratorResult<Uint8Array<ArrayBuffer>>> => {
      await this.#parts.return(undefined);
      return { done: true, value: undefined };
    };
    return { [Symbol.asyncIterator]: () => ({ next, return: end }), return: end };
  }

  #add(part: string | Uint8Array): void {
    const isText = typeof part === "string";
    // A character of UTF-16 has at most three bytes in UTF-8.
    const bytesMax = this.#used + (isText ? 3 * part.length : part.byteLength);
    if (bytesMax > this.#bytes.byteLength) {
      const larger = Buffer.allocUnsafeSlow(Math.max(bytesMax, 2 * this.#bytes.byteLength));
      this.#bytes.copy(larger, 0, 0, this.#used);
      this.#bytes = larger;
    }
    if (isText) this.#used += this.#bytes.write(part, this.#used, "utf8");
    else {
      this.#bytes.set(part, this.#used);
      this.#used += part.byteLength;
    }
  }
}
