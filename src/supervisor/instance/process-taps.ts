import { ApiError } from "../../domain/errors.ts";
import type { OutputStream } from "../../domain/output.ts";
import type { OutputSizes, StreamBytes } from "../../storage/events/process-outputs.ts";
import { OutputBlocks, type OutputChunk, type OutputReader } from "./output-blocks.ts";

/** Largest number of taps of one process. */
const TAPS_COUNT_MAX = 4;

/** The taps of one process as plain data. */
export interface TapsRecord {
  /** false: the process waits for no reader */
  readonly holds: boolean;
  /** output that waits for the slowest reader, in its order; the bytes are in base64 */
  readonly waiting: readonly { readonly stream: OutputStream; readonly bytes: string }[];
  readonly taps: readonly TapRecord[];
}

/** One tap. A chunk counts as read once the reader has received it. */
interface TapRecord {
  readonly before: OutputSizes;
  readonly missed: Readonly<Record<OutputStream, number>>;
  /** `bytes` at the end of the waiting output that the reader has not read */
  readonly waitingBytes: number;
}

interface TapOptions {
  readonly before: Tap["before"];
  readonly missed?: TapRecord["missed"];
  readonly reader: OutputReader;
  /** called when the reader has read all output, and when it leaves */
  readonly onDrained: () => void;
  readonly onLeave: () => void;
}

/**
 * The output of a process for one reader, from the moment when the tap is opened. The process gets no more credit while
 * output waits for the reader, so its credit bounds the size of the waiting output.
 */
export class Tap implements Disposable {
  /** sizes of the logged and of the dropped output of each stream before the first chunk */
  readonly before: OutputSizes;
  /** output of each stream after the last chunk, in `bytes`: the process no longer waited for the reader */
  readonly missed: Record<OutputStream, number>;
  readonly #options: TapOptions;
  /** null after disposal */
  #reader: OutputReader | null;
  #isBehind = false;
  #isOver = false;
  #wake: (() => void) | null = null;

  constructor(options: TapOptions) {
    this.before = options.before;
    this.missed = { stdout: 0, stderr: 0, ...options.missed };
    this.#reader = options.reader;
    this.#options = options;
  }

  /** True after disposal. */
  get hasLeft(): boolean {
    return this.#reader === null;
  }

  /** True while output waits for the reader, or the reader has not yet requested more. */
  get isBehind(): boolean {
    return this.#isBehind;
  }

  /** The output that the reader has not read. */
  waiting(): OutputChunk[] {
    return this.#reader?.rest() ?? [];
  }

  /** The output, until the process ends. The reader has read a chunk when it requests the next one. */
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

  /** Drops the waiting output, so that the process can continue. Idempotent. */
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
    this.#options.onDrained();
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
  /** resolves when all taps accept more output; null while they do */
  #drained: PromiseWithResolvers<void> | null = null;

  /**
   * @param bytes returns the sizes of the logged and of the dropped output of a stream so far
   * @param from earlier taps to continue
   */
  constructor(bytes: (stream: OutputStream) => StreamBytes, from?: TapsRecord) {
    this.#bytes = bytes;
    if (from !== undefined) this.#resume(from);
  }

  record(): TapsRecord {
    const all = [...this.#taps].map((tap) => ({ tap, waiting: tap.waiting() }));
    const sizes = all.map(({ waiting }) => sizeOf(waiting));
    const slowest = all[sizes.indexOf(Math.max(...sizes))]?.waiting ?? [];
    return {
      holds: this.#holds,
      waiting: slowest.map(({ stream, bytes }) => ({ stream, bytes: Buffer.from(bytes).toString("base64") })),
      taps: all.map(({ tap: { before, missed } }, index) => ({
        before,
        missed: { ...missed },
        waitingBytes: sizes[index] ?? 0,
      })),
    };
  }

  /** The open taps, in the order in which they were opened. */
  get opened(): readonly Tap[] {
    return [...this.#taps];
  }

  /** Resolves when all taps accept more output; undefined when they do now. */
  get drained(): Promise<void> | undefined {
    return this.#drained?.promise;
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
    return this.#open({ before: { stdout: this.#bytes("stdout"), stderr: this.#bytes("stderr") } });
  }

  /** Copies a chunk to all taps. */
  push(stream: OutputStream, chunk: Uint8Array): void {
    if (this.#blocks === null) return;
    if (!this.#holds) {
      for (const { missed } of this.#taps) missed[stream] += chunk.byteLength;
      return;
    }
    this.#blocks.push(stream, chunk);
    for (const tap of this.#taps) tap.notify();
    this.#drained ??= Promise.withResolvers();
  }

  /** From now on the process waits for no reader. The readers still get the waiting output, but no later output. */
  letGo(): void {
    this.#holds = false;
    this.#settle();
  }

  /** To be called when the process has ended or is lost. */
  end(): void {
    for (const tap of this.#taps) tap.end();
  }

  #open(options: Pick<TapOptions, "before" | "missed">): Tap {
    this.#blocks ??= new OutputBlocks();
    const tap: Tap = new Tap({
      ...options,
      reader: this.#blocks.reader(),
      onDrained: () => this.#settle(),
      onLeave: () => this.#leave(tap),
    });
    this.#taps.add(tap);
    return tap;
  }

  /** Opens the taps of the record, each before the part of the output that waits for it. */
  #resume({ holds, waiting, taps }: TapsRecord): void {
    const chunks = waiting.map(({ stream, bytes }) => ({ stream, bytes: Buffer.from(bytes, "base64") }));
    const totalBytes = sizeOf(chunks);
    const opened = new Map<TapRecord, Tap>();
    let at = 0;
    for (const tap of taps.toSorted((one, other) => other.waitingBytes - one.waitingBytes)) {
      const next = totalBytes - tap.waitingBytes;
      for (const { stream, bytes } of between(chunks, at, next)) this.#blocks?.push(stream, bytes);
      opened.set(tap, this.#open(tap));
      at = next;
    }
    for (const { stream, bytes } of between(chunks, at, totalBytes)) this.#blocks?.push(stream, bytes);
    for (const [{ waitingBytes }, tap] of opened) if (waitingBytes > 0) tap.notify();
    this.#taps.clear();
    for (const record of taps) {
      const tap = opened.get(record);
      if (tap !== undefined) this.#taps.add(tap);
    }
    this.#holds = holds;
    this.#drained = Promise.withResolvers();
    this.#settle();
  }

  #settle(): void {
    const isHeld = this.#holds && [...this.#taps].some(({ isBehind }) => isBehind);
    if (isHeld) return;
    this.#drained?.resolve();
    this.#drained = null;
  }

  #leave(tap: Tap): void {
    this.#taps.delete(tap);
    if (this.#taps.size === 0) this.#blocks = null;
  }
}

function sizeOf(chunks: readonly OutputChunk[]): number {
  return chunks.reduce((sum, { bytes }) => sum + bytes.byteLength, 0);
}

/** The parts of the chunks between two offsets, in `bytes` from the start of the first chunk. */
function* between(chunks: readonly OutputChunk[], from: number, to: number): Generator<OutputChunk> {
  let at = 0;
  for (const { stream, bytes } of chunks) {
    const part = bytes.subarray(Math.max(0, from - at), Math.max(0, to - at));
    if (part.byteLength > 0) yield { stream, bytes: part };
    at += bytes.byteLength;
  }
}
