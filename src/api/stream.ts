import { ReadableStream as WebStream } from "node:stream/web";
import type { Gzip } from "node:zlib";
import type { Reply } from "./reply.ts";

type Chunks = AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;

/** Chunks that can be ended before the first one is requested. */
interface Endable extends AsyncIterable<Uint8Array<ArrayBuffer>> {
  return(): Promise<unknown>;
}

/** Bun's kind of stream that writes to the socket itself; the types of browsers, with which the page is checked, lack it. */
const DirectStream = ReadableStream as unknown as new (
  source: Bun.DirectUnderlyingSource<Uint8Array>,
) => ReadableStream<Uint8Array>;

/**
 * A body of chunks that may reuse one buffer: each is copied to the socket before the next is requested, and none is
 * requested while the client does not read. `held` is disposed when the body ends or is cancelled.
 */
export function directStream(chunks: Endable, held?: Disposable): ReadableStream<Uint8Array> {
  let isCancelled = false;
  return new DirectStream({
    type: "direct",
    async pull(controller) {
      using _held = held;
      for await (const chunk of chunks) {
        await controller.write(chunk);
        await controller.flush();
        if (isCancelled) return;
      }
      controller.close();
    },
    async cancel() {
      isCancelled = true;
      using _held = held;
      await chunks.return();
    },
  });
}

/** What a body is made of, as it comes. */
export interface Followed<Found> {
  /** What comes next; null at the end. It is a promise only when it must wait, and settles when the client has left. */
  next(): Found | null | Promise<Found | null>;
  /** The bytes of it; there may be none. They are valid for good. */
  encode(found: Found): Uint8Array<ArrayBuffer>;
  /** The last bytes after a failure; null: none. It may throw the error, which then cuts the body off. */
  failed(error: unknown): Uint8Array<ArrayBuffer> | null;
}

/** How a body is followed. */
interface FollowOptions {
  /** sent at the beginning, and whenever nothing else was sent for `afterMs` */
  readonly idle: { readonly chunk: Uint8Array<ArrayBuffer>; readonly afterMs: number };
  /** disposed when the body ends, fails or is cancelled; it may be disposed of twice */
  readonly held: Disposable;
  /** called when the client disconnects; a pending `next` must settle then */
  readonly onCancel: () => void;
}

/**
 * A body that may wait for its next chunk for a long time. The next one is requested when the client has taken the one
 * before. It costs little for each chunk, because there are many such bodies, and many chunks.
 */
export function followStream<Found>(
  source: Followed<Found>,
  { idle, held, onCancel }: FollowOptions,
): ReadableStream<Uint8Array> {
  let isCancelled = false;
  return new DirectStream({
    type: "direct",
    async pull(controller) {
      using _held = held;
      using sink = new IdleSink(controller, idle);
      // Bun sends the headers with the first bytes of the body, which the client should not have to wait for.
      for (let chunk: typeof idle.chunk | null = idle.chunk; chunk !== null && !isCancelled; ) {
        const sent = chunk.byteLength === 0 ? undefined : sink.send(chunk);
        if (sent !== undefined) await sent;
        try {
          const next = source.next();
          const found = next instanceof Promise ? await next : next;
          chunk = found === null ? null : source.encode(found);
        } catch (error) {
          const last = source.failed(error);
          if (last !== null) await sink.send(last);
          break;
        }
      }
      controller.close();
    },
    cancel() {
      isCancelled = true;
      // It may be cancelled before its first chunk, without a call of `pull`.
      using _held = held;
      onCancel();
    },
  });
}

/** Sends chunks, and others when there are none for some time. */
class IdleSink implements Disposable {
  readonly #controller: ReadableStreamDirectController;
  readonly #idle: FollowOptions["idle"];
  #timer: Timer;
  #sentAtMs = performance.now();
  /** pending while the client does not take what was sent */
  #flushing: Promise<void> | null = null;

  constructor(controller: ReadableStreamDirectController, idle: FollowOptions["idle"]) {
    this.#controller = controller;
    this.#idle = idle;
    this.#timer = setTimeout(() => this.#onTimer(), idle.afterMs);
  }

  /** Sends a chunk; undefined when the client can take the next one, a promise of that otherwise. */
  send(chunk: Uint8Array<ArrayBuffer>): Promise<void> | undefined {
    if (this.#flushing !== null) return this.#sendLater(chunk);
    this.#write(chunk);
    return this.#flushing ?? undefined;
  }

  async #sendLater(chunk: Uint8Array<ArrayBuffer>): Promise<void> {
    await this.#flushing;
    await this.send(chunk);
  }

  #write(chunk: Uint8Array<ArrayBuffer>): void {
    const written = this.#controller.write(chunk);
    const flushed = this.#controller.flush();
    this.#sentAtMs = performance.now();
    // Either of them is a promise while the client does not read.
    if (written instanceof Promise || flushed instanceof Promise) this.#flushing = this.#taken(written, flushed);
  }

  async #taken(written: unknown, flushed: unknown): Promise<void> {
    try {
      if (written instanceof Promise) await written;
      if (flushed instanceof Promise) await flushed;
    } catch {
      // The client has left, as `cancel` tells.
    }
    this.#flushing = null;
    this.#sentAtMs = performance.now();
  }

  #onTimer(): void {
    const leftMs = this.#sentAtMs + this.#idle.afterMs - performance.now();
    if (leftMs <= 0 && this.#flushing === null) this.#write(this.#idle.chunk);
    this.#timer = setTimeout(() => this.#onTimer(), leftMs > 0 ? leftMs : this.#idle.afterMs);
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
  }
}

/**
 * A body that requests the next chunk when the client reads. When the client disconnects, `onCancel` is called first, so
 * that a pending chunk can end, and then `chunks` is ended. `held` is disposed when the body ends, fails or is cancelled.
 */
export function pullStream(
  chunks: AsyncIterator<Uint8Array, unknown, undefined>,
  { held, onCancel }: { readonly held?: Disposable | undefined; readonly onCancel?: () => void },
): ReadableStream<Uint8Array> {
  const iterator: AsyncIterator<Uint8Array> = {
    async next() {
      using ending = new DisposableStack();
      ending.use(held);
      const step = await chunks.next();
      if (step.done === true) return { done: true, value: undefined };
      ending.move();
      return step;
    },
    async return() {
      using _held = held;
      onCancel?.();
      await chunks.return?.();
      return { done: true, value: undefined };
    },
  };
  return WebStream.from({ [Symbol.asyncIterator]: () => iterator }) as unknown as ReadableStream<Uint8Array>;
}

/** Text is collected to chunks of this size, in `bytes`. */
const CHUNK_BYTES = 65_536;
/** Most texts fit into the first buffer, in `bytes`. */
const FIRST_BYTES = 16_384;

/**
 * A reply of text that may be too long to be in memory at once. A short text is sent in one piece. `held` is disposed when
 * the text ends, fails or is cancelled.
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

/** Collects parts of a text to chunks, each of which is valid until the next one is requested. */
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

  /** All chunks, of which `next` has given the first one. Their end is that of the parts, also before the first one. */
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

/** Fast rather than small, because a client waits for the result. */
const GZIP_LEVEL = 4;

/** Compresses chunks. It reads ahead of its reader by zlib's buffers only. */
export async function* gzipChunks(chunks: Chunks): Chunks {
  // Loaded only here: few daemons are asked for it.
  const { createGzip } = await import("node:zlib");
  const gzip = createGzip({ level: GZIP_LEVEL });
  const fed = feed(chunks, gzip);
  // The failure is thrown by the loop below; this keeps it from counting as an unhandled rejection.
  fed.catch((error) => gzip.destroy(error));
  for await (const chunk of gzip) yield chunk as Uint8Array<ArrayBuffer>;
  await fed;
}

async function feed(chunks: Chunks, gzip: Gzip): Promise<void> {
  for await (const chunk of chunks) {
    if (gzip.destroyed) return;
    // The callback is called when zlib has taken the bytes: the buffer may be reused then.
    await new Promise<void>((resolve) => {
      gzip.once("close", resolve);
      gzip.write(chunk, () => {
        gzip.off("close", resolve);
        resolve();
      });
    });
  }
  gzip.end();
}
