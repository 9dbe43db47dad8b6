import { DirectStream } from "./direct.ts";

/** The source of a body whose parts arrive over time. */
export interface Followed<Found> {
  /** The next item; null at the end. A promise only when it must wait; it settles when the client has left. */
  next(): Found | null | Promise<Found | null>;
  /** The bytes of an item, in memory that is not reused; may be empty. */
  encode(item: Found): Uint8Array<ArrayBuffer>;
  /** The last bytes after a failure; null: none. May throw the error, which then aborts the body. */
  failed(error: unknown): Uint8Array<ArrayBuffer> | null;
}

/** Options of a followed body. */
interface FollowOptions {
  /** sent at the beginning, and after every `afterMs` without other bytes */
  readonly idle: { readonly chunk: Uint8Array<ArrayBuffer>; readonly afterMs: number };
  /** disposed when the body ends, fails or is cancelled; it may be disposed of twice */
  readonly held: Disposable;
  /** called when the client disconnects; a pending `next` must settle then */
  readonly onCancel: () => void;
}

/**
 * A body that may wait long for its next chunk, which is requested when the client has read the one before. Chunks are
 * cheap, because there are many such bodies, and many chunks.
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
          const item = next instanceof Promise ? await next : next;
          chunk = item === null ? null : source.encode(item);
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

/** Sends chunks, and an idle chunk after a time without any. */
class IdleSink implements Disposable {
  readonly #controller: ReadableStreamDirectController;
  readonly #idle: FollowOptions["idle"];
  #timer: Timer;
  #sentAtMs = performance.now();
  /** pending while the client does not read the sent bytes */
  #flushing: Promise<void> | null = null;

  constructor(controller: ReadableStreamDirectController, idle: FollowOptions["idle"]) {
    this.#controller = controller;
    this.#idle = idle;
    this.#timer = setTimeout(() => this.#onTimer(), idle.afterMs);
  }

  /** Sends a chunk. Returns undefined when the client can receive the next one, otherwise a promise of that. */
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
      // The client has left, which `cancel` reports.
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
