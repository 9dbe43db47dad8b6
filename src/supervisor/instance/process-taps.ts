import { ApiError } from "../../domain/errors.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";

/** Readers of one process that may hold it back. */
const TAPS_COUNT_MAX = 4;

/** What a process wrote at once. */
export interface OutputChunk {
  readonly stream: OutputStream;
  readonly bytes: Uint8Array;
}

/**
 * The outputs of a process from one moment on, for one reader. The process gets no more credit while anything waits for
 * the reader, so that what waits is bounded by its credit.
 */
export class Tap implements Disposable {
  /** what the log had kept and dropped of each stream before the first chunk */
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

  /** It was disposed of. */
  get hasLeft(): boolean {
    return this.#hasLeft;
  }

  /** Chunks as they come, to the end of the process. A chunk is taken when the next one is asked for. */
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

  /** Resolves when the reader has taken everything. */
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

  /** Lets the process go on. Idempotent. */
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

  /** @param bytes what the log has kept and dropped of a stream until now */
  constructor(bytes: (stream: OutputStream) => StreamBytes) {
    this.#bytes = bytes;
  }

  /** How many readers hold the process back. */
  get count(): number {
    return this.#taps.size;
  }

  /** @throws ApiError `too_many_requests` */
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
   * Gives all taps a copy of what the process wrote, and so does the log.
   * @param logged as `OutputSink` returned it
   * @returns as `OutputSink` does
   */
  push(stream: OutputStream, chunk: Uint8Array, logged: Promise<void> | undefined): Promise<void> | undefined {
    if (this.#taps.size === 0) return logged;
    const copy = { stream, bytes: chunk.slice() };
    const waits = [...this.#taps].map((tap) => tap.push(copy));
    if (logged !== undefined) waits.push(logged);
    return Promise.all(waits).then(() => undefined);
  }

  /** The process has ended, or is lost. */
  end(): void {
    for (const tap of this.#taps) tap.end();
  }
}

/** True when `counted` has reached what the log had kept before the tap. */
export function hasReached({ before }: Tap, counted: Readonly<Record<OutputStream, number>>): boolean {
  return OUTPUT_STREAMS.every((stream) => counted[stream] >= before[stream].kept);
}
