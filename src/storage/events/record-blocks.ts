/** Smallest and largest size of a block, in `bytes`. The largest record fits the largest block. */
const BLOCK_BYTES_MIN = 4096;
const BLOCK_BYTES_MAX = 65_536;
/** Number of written blocks that are reused; a full queue has as many. */
const SPARE_BLOCKS_COUNT_MAX = 16;

/** A block of memory, in which records are built. Its bytes from `from` to `used` are not written yet. */
export interface Block {
  readonly bytes: Buffer;
  from: number;
  used: number;
}

/** Bytes that are being written. */
export interface WaitingBytes {
  readonly pieces: readonly Uint8Array[];
  /** To be called when they are written: their memory is reused. */
  readonly release: () => void;
}

/** The memory of the records that a log has not written yet. */
export class RecordBlocks {
  #blocks: Block[] = [];
  /** written blocks of the largest size, for reuse */
  readonly #spare: Buffer[] = [];

  /** A block with room for so many `bytes`, after everything that was added before. */
  withRoom(bytes: number): Block {
    const last = this.#blocks.at(-1);
    if (last !== undefined && last.bytes.byteLength - last.used >= bytes) return last;
    const requestedBytes = last === undefined ? BLOCK_BYTES_MIN : Math.min(BLOCK_BYTES_MAX, 4 * last.bytes.byteLength);
    const sizeBytes = Math.max(requestedBytes, bytes);
    const spare = sizeBytes === BLOCK_BYTES_MAX ? this.#spare.pop() : undefined;
    const block = { bytes: spare ?? Buffer.allocUnsafeSlow(sizeBytes), from: 0, used: 0 };
    this.#blocks.push(block);
    return block;
  }

  /** Takes the bytes that are not written yet. Later ones go into the last block, after those. */
  take(): WaitingBytes {
    const waiting = this.#blocks.filter(({ from, used }) => used > from);
    const pieces = waiting.map(({ bytes, from, used }) => bytes.subarray(from, used));
    for (const block of waiting) block.from = block.used;
    const filled = this.#blocks.slice(0, -1);
    this.#blocks = this.#blocks.slice(-1);
    return { pieces, release: () => this.#reuse(filled) };
  }

  clear(): void {
    this.#blocks = [];
  }

  #reuse(filled: readonly Block[]): void {
    for (const { bytes } of filled) {
      if (this.#spare.length < SPARE_BLOCKS_COUNT_MAX && bytes.byteLength === BLOCK_BYTES_MAX) this.#spare.push(bytes);
    }
  }
}

/** The pieces before and after the first `bytes`. */
export function splitAt(pieces: readonly Uint8Array[], bytes: number): [Uint8Array[], Uint8Array[]] {
  const [before, after]: [Uint8Array[], Uint8Array[]] = [[], []];
  let left = bytes;
  for (const piece of pieces) {
    const head = piece.subarray(0, Math.max(0, left));
    const tail = piece.subarray(head.byteLength);
    left -= piece.byteLength;
    if (head.byteLength > 0) before.push(head);
    if (tail.byteLength > 0) after.push(tail);
  }
  return [before, after];
}
