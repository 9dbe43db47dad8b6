/** Sizes of the first and of the largest block, in `bytes`. Each block is twice as large as the one before, or as a large piece. */
const BLOCK_BYTES_MIN = 4096;
const BLOCK_BYTES_MAX = 262_144;

/** Collects pieces of any size in larger blocks, so that a million pieces of one byte take little more than a MiB. */
export class ByteBlocks {
  /** in order; all but the last are full */
  readonly #blocks: Uint8Array[] = [];
  /** used part of the last block */
  #usedBytes = 0;
  #bytes = 0;
  #nextBlockBytes = BLOCK_BYTES_MIN;

  /** Number of bytes. */
  get byteLength(): number {
    return this.#bytes;
  }

  /** Adds a copy of a piece: the caller may reuse its buffer. */
  push(piece: Uint8Array): void {
    for (let rest = piece; rest.byteLength > 0; ) {
      const block = this.#blockWithRoom(rest.byteLength);
      const part = rest.subarray(0, block.byteLength - this.#usedBytes);
      block.set(part, this.#usedBytes);
      this.#usedBytes += part.byteLength;
      rest = rest.subarray(part.byteLength);
    }
    this.#bytes += piece.byteLength;
  }

  /** Removes and returns the first block; null when there are no bytes. */
  take(): Uint8Array | null {
    const block = this.#blocks.shift();
    if (block === undefined) return null;
    const bytes = this.#blocks.length === 0 ? block.subarray(0, this.#usedBytes) : block;
    this.#bytes -= bytes.byteLength;
    // Pieces that are removed as fast as they arrive need no large blocks.
    if (this.#bytes === 0) this.#nextBlockBytes = BLOCK_BYTES_MIN;
    return bytes;
  }

  /** All blocks. The last one is valid until the next `push`. */
  blocks(): Uint8Array[] {
    return this.#blocks.map((block, at) =>
      at === this.#blocks.length - 1 ? block.subarray(0, this.#usedBytes) : block,
    );
  }

  #blockWithRoom(wantedBytes: number): Uint8Array {
    const last = this.#blocks.at(-1);
    if (last !== undefined && this.#usedBytes < last.byteLength) return last;
    const block = new Uint8Array(Math.max(this.#nextBlockBytes, Math.min(wantedBytes, BLOCK_BYTES_MAX)));
    this.#nextBlockBytes = Math.min(2 * this.#nextBlockBytes, BLOCK_BYTES_MAX);
    this.#blocks.push(block);
    this.#usedBytes = 0;
    return block;
  }
}
