import { ApiError } from "../../domain/errors.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";
import { OutputBlocks, type OutputChunk, type OutputReader } from "./output-blocks.ts";

/** Largest number of taps of one process. */
const TAPS_COUNT_MAX = 4;

interface TapOptions {
  readonly before: Tap["before"];
  readonly reader: OutputReader;
  /** called when the reader has taken all output, and when it leaves */
  readonly onTaken: () => void;
  readonly onLeave: () => void;
}

/**
 * The output of a process for one reader, from the moment when the tap is opened. The process gets no more credit while
 * output waits for the reader, so its credit bounds the size of that.
 */
export class Tap implements Disposable {
  /** sizes of the logged and of the dropped output of each stream before the first chunk */
  readonly before: Readonly<Record<OutputStream, StreamBytes>>;
  /** output of each stream after the last chunk, in `bytes`: the process did not wait for the reader any more */
  readonly missed: Record<OutputStream, number> = { stdout: 0, stderr: 0 };
  readonly #options: TapOptions;
  /** null after disposal */
  #reader: OutputReader | null;
  #isBehind = false;
  #isOver = false;
  #wake: (() => void) | null = null;

  constructor(options: TapOptions) {
    this.before = options.before;
    this.#reader = options.reader;
    this.#options = options;
  }

  /** True after disposal. */
  get hasLeft(): boolean {
    return this.#reader === null;
  }

  /** True while output waits for the reader, or the reader has not yet asked for more. */
  get isBehind(): boolean {
    return this.#isBehind;
  }

  /** The output, until the process ends. The reader has taken a chunk when it requests the next one. */
  async *chunks(): AsyncGenerator<OutputChunk, void, undefined> {
    for (;;) {
      for (let chunk = this.#next(); chunk !== null; chunk = this.#next()) yield chunk;
      this.#take();
      if (this.#isOver) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** To be called when the blocks have more output. */
  notify(): void {
    this.#isBehind = true;
    this.#wake?.();
  }

  end(): void {
    this.#isOver = true;
    this.#wake?.();
  }

  /** Drops the output that waits, so that the process can go on. Idempotent. */
  [Symbol.dispose](): void {
    this.#reader = null;
    this.#options.onLeave();
    this.#take();
    this.end();
  }

  #next(): OutputChunk | null {
    return this.#reader?.next() ?? null;
  }

  #take(): void {
    if (!this.#isBehind) return;
    this.#isBehind = false;
    this.#options.onTaken();
  }
}

/** The taps of one process. */
export class ProcessTaps {
  readonly #bytes: (stream: OutputStream) => StreamBytes;
  readonly #taps = new Set<Tap>();
  /** false: the process waits for no reader */
  #holds = true;
  /** null while there is no tap */
  #blocks: OutputBlocks | null = null;
  /** of the log, while it can take no more */
  #logged: Promise<void> | null = null;
  /** of the log and all taps, while one of them can take no more */
  #taken: PromiseWithResolvers<void> | null = null;

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
    this.#blocks ??= new OutputBlocks();
    const tap: Tap = new Tap({
      before,
      reader: this.#blocks.reader(),
      onTaken: () => this.#settle(),
      onLeave: () => this.#leave(tap),
    });
    this.#taps.add(tap);
    return tap;
  }

  /**
   * Gives a copy of a chunk to all taps.
   * @param logged result of logging the chunk: resolves when the log can take more; undefined when it can now
   * @returns a promise that resolves when the log and all taps can take more, the same one until then; undefined when they
   *   can now
   */
  push(stream: OutputStream, chunk: Uint8Array, logged: Promise<void> | undefined): Promise<void> | undefined {
    if (this.#blocks === null) return logged;
    if (!this.#holds) {
      for (const { missed } of this.#taps) missed[stream] += chunk.byteLength;
      return logged;
    }
    this.#blocks.push(stream, chunk);
    for (const tap of this.#taps) tap.notify();
    if (logged !== undefined && logged !== this.#logged) this.#await(logged);
    this.#taken ??= Promise.withResolvers();
    return this.#taken.promise;
  }

  /** From now on the process waits for no reader. They still get the output that waits, but none that comes later. */
  letGo(): void {
    this.#holds = false;
    this.#settle();
  }

  /** To be called when the process has ended or is lost. */
  end(): void {
    for (const tap of this.#taps) tap.end();
  }

  #await(logged: Promise<void>): void {
    this.#logged = logged;
    void logged.then(() => {
      if (this.#logged === logged) this.#logged = null;
      this.#settle();
    });
  }

  #settle(): void {
    const isHeld = this.#holds && [...this.#taps].some(({ isBehind }) => isBehind);
    if (this.#logged !== null || isHeld) return;
    this.#taken?.resolve();
    this.#taken = null;
  }

  #leave(tap: Tap): void {
    this.#taps.delete(tap);
    if (this.#taps.size === 0) this.#blocks = null;
  }
}

/** True when a reader of the log has read `counted` bytes of each stream, and so all output before the tap. */
export function hasReached({ before }: Tap, counted: Readonly<Record<OutputStream, number>>): boolean {
  return OUTPUT_STREAMS.every((stream) => counted[stream] >= before[stream].kept);
}
