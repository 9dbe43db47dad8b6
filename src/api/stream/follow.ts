import { DirectStream } from "./direct.ts";

/** What a body is made of, as it comes. */
export interface Followed<Found> {
  /** What comes next; null at the end. It is a promise only when it must wait, and settles when the client has left. */
  next(): Found | null | Promise<Found | null>;
  /** The bytes of it; there may be none. They are valid for good. */
  encode(item: Found): Uint8Array<ArrayBuffer>;
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
