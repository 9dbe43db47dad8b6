import { ByteBlocks } from "./byte-blocks.ts";

/** Default of `truncate_output_at`, in bytes per stream. */
export const OUTPUT_BYTES_DEFAULT = 1_048_576;
/** Upper bound of `truncate_output_at`, in bytes per stream. */
export const OUTPUT_BYTES_MAX = 10_485_760;

export const OUTPUT_STREAMS = ["stdout", "stderr"] as const;
export type OutputStream = (typeof OUTPUT_STREAMS)[number];

/** Keeps the first `limitBytes` of a stream and counts the rest. */
export class OutputCapture {
  readonly #limitBytes: number;
  readonly #kept = new ByteBlocks();
  #totalBytes = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /** Adds a chunk, which is copied: the caller may reuse its buffer. */
  push(chunk: Uint8Array): void {
    this.#totalBytes += chunk.byteLength;
    const room = this.#limitBytes - this.#kept.byteLength;
    if (room > 0) this.#kept.push(chunk.subarray(0, room));
  }

  get totalBytes(): number {
    return this.#totalBytes;
  }

  get truncated(): boolean {
    return this.#totalBytes > this.#kept.byteLength;
  }

  /** Whether nothing was kept. */
  get isEmpty(): boolean {
    return this.#kept.byteLength === 0;
  }

  /** What was kept, in order; the last block is good until the next `push`. */
  blocks(): Uint8Array[] {
    return this.#kept.blocks();
  }
}
