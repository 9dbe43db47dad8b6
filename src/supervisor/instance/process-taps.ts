import { ApiError } from "../../domain/errors.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";

/** Largest number of taps of one process. */
const TAPS_COUNT_MAX = 4;

/** A piece of a process's output. */
export interface OutputChunk {
  readonly stream: OutputStream;
  readonly bytes: Uint8Array;
}

/**
 * The output of a process for one reader, from the moment when the tap is opened. The process gets no more credit while
 * chunks wait for the reader, so its credit bounds their size.
 */
export class Tap implements Disposable {
  /** sizes of the logged and of the dropped output of each stream before the first chunk */
  readonly before: Readonly<Record<OutputStream, StreamBytes>>;
  readonly #onLeave: () => void;
  readonly #chunks: OutputChunk[] = [];
  #isOver = false;
  #hasLeft = false;
  #changed = Promise.withResolvers<void>();
  #taken: PromiseWithResolvers<void> | null = null;

  constructor(before: Tap["before"], onLeave: () => void) {
    this.before = before;
    this.#onLeave = onLeave;
  }

  /** True after disposal. */
  get hasLeft(): boolean {
    return this.#hasLeft;
  }

  /** The chunks, until the process ends. The reader has taken a chunk when it requests the next one. */
  async *chunks(): AsyncGenerator<OutputChunk, void, undefined> {
    for (;;) {
      for (let [chunk] = this.#chunks; chunk !== undefined; [chunk] = this.#chunks) {
        yield chunk;
        this.#chunks.shift();
      }
      this.#release();
      if (this.#isOver) return;
      await this.#changed.promise;
    }
  }

  /** Queues a chunk. Resolves when the reader has taken all chunks. */
  push(chunk: OutputChunk): Promise<void> {
    this.#chunks.push(chunk);
    this.#wake();
    this.#taken ??= Promise.withResolvers();
    return this.#taken.promise;
  }

  end(): void {
    this.#isOver = true;
    this.#wake();
  }

  /** Drops the waiting chunks, so that the process can go on. Idempotent. */
  [Symbol.dispose](): void {
    this.#hasLeft = true;
    this.#chunks.length = 0;
    this.#onLeave();
    this.#release();
    this.end();
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
  }

  #release(): void {
    this.#taken?.resolve();
    this.#taken = null;
  }
}

/** The taps of one process. */
export class ProcessTaps {
  readonly #bytes: (stream: OutputStream) => StreamBytes;
  readonly #taps = new Set<Tap>();

  /** @param bytes returns the sizes of the logged and of the dropped output of a stream so far */
  constructor(bytes: (stream: OutputStream) => StreamBytes) {
    this.#bytes = bytes;
  }

  /** Number of open taps. */
  get count(): number {
    return this.#taps.size;
  }

  /** Opens a tap. @throws ApiError `too_many_requests` when the process has too many */
  open(): Tap {
    if (this.#taps.size >= TAPS_COUNT_MAX) {
      const details = { limit: TAPS_COUNT_MAX };
      throw new ApiError("too_many_requests", "too many lossless attachments of the process", details);
    }
    const before = { stdout: this.#bytes("stdout"), stderr: this.#bytes("stderr") };
    const tap = new Tap(before, () => void this.#taps.delete(tap));
    this.#taps.add(tap);
    return tap;
  }

  /**
   * Gives a copy of a chunk to all taps.
   * @param logged result of logging the chunk: resolves when the log can take more; undefined when it can now
   * @returns a promise that resolves when the log and all taps can take more; undefined when they can now
   */
  push(stream: OutputStream, chunk: Uint8Array, logged: Promise<void> | undefined): Promise<void> | undefined {
    if (this.#taps.size === 0) return logged;
    const copy = { stream, bytes: new Uint8Array(chunk) };
    const waits = [...this.#taps].map((tap) => tap.push(copy));
    if (logged !== undefined) waits.push(logged);
    return Promise.all(waits).then(() => undefined);
  }

  /** To be called when the process has ended or is lost. */
  end(): void {
    for (const tap of this.#taps) tap.end();
  }
}

/** True when a reader of the log has read `counted` bytes of each stream, and so all output before the tap. */
export function hasReached({ before }: Tap, counted: Readonly<Record<OutputStream, number>>): boolean {
  return OUTPUT_STREAMS.every((stream) => counted[stream] >= before[stream].kept);
}
