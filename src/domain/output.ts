import { type Static, Type } from "@sinclair/typebox";
import { ByteBlocks } from "./byte-blocks.ts";

/** Default of `truncate_output_at`, in bytes per stream. */
export const OUTPUT_BYTES_DEFAULT = 1_048_576;
/** Upper bound of `truncate_output_at`, in bytes per stream. */
export const OUTPUT_BYTES_MAX = 10_485_760;

export const OUTPUT_STREAMS = ["stdout", "stderr"] as const;
export type OutputStream = (typeof OUTPUT_STREAMS)[number];

export const OutputObject = Type.Object({
  content: Type.String({ description: "captured text, in the given encoding" }),
  encoding: Type.Union([Type.Literal("ascii"), Type.Literal("base64")], {
    description: "ascii when every byte is below 0x80, otherwise base64",
  }),
  truncated: Type.Boolean({ description: "true when the output was cut at the truncation limit" }),
});
export type OutputObject = Static<typeof OutputObject>;

/** Wire form of the kept part of a stream. */
export function outputObject(kept: Uint8Array, truncated: boolean): OutputObject {
  const bytes = Buffer.from(kept.buffer, kept.byteOffset, kept.byteLength);
  const ascii = bytes.every((byte) => byte < 0x80);
  return {
    content: bytes.toString(ascii ? "latin1" : "base64"),
    encoding: ascii ? "ascii" : "base64",
    truncated,
  };
}

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
