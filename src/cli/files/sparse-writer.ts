import type { FileHandle } from "node:fs/promises";

/** Size of the blocks that become holes, in `bytes`: that of usual file systems. */
const BLOCK_BYTES = 4096;

/** Writes an empty file from its beginning. Whole blocks of zeros become holes. */
export class SparseWriter {
  readonly #file: FileHandle;
  #offset = 0;

  constructor(file: FileHandle) {
    this.#file = file;
  }

  async write(chunk: Uint8Array): Promise<void> {
    let from = 0;
    while (from < chunk.byteLength) {
      const isHole = this.#isHoleAt(chunk, from);
      let to = this.#nextBlock(chunk, from);
      while (to < chunk.byteLength && this.#isHoleAt(chunk, to) === isHole) to = this.#nextBlock(chunk, to);
      if (!isHole) await this.#writeAll(chunk.subarray(from, to), this.#offset + from);
      from = to;
    }
    this.#offset += chunk.byteLength;
  }

  /** Sets the size, which a hole at the end does not. */
  async end(): Promise<void> {
    await this.#file.truncate(this.#offset);
  }

  /** True when the chunk has a whole block there, and all of it is zero. */
  #isHoleAt(chunk: Uint8Array, at: number): boolean {
    const isWhole = (this.#offset + at) % BLOCK_BYTES === 0 && at + BLOCK_BYTES <= chunk.byteLength;
    return isWhole && ZEROS.equals(chunk.subarray(at, at + BLOCK_BYTES));
  }

  /** The start of the next block of the file, within the chunk. */
  #nextBlock(chunk: Uint8Array, at: number): number {
    return Math.min(chunk.byteLength, at + BLOCK_BYTES - ((this.#offset + at) % BLOCK_BYTES));
  }

  async #writeAll(bytes: Uint8Array, position: number): Promise<void> {
    for (let done = 0; done < bytes.byteLength; ) {
      const { bytesWritten } = await this.#file.write(bytes, done, bytes.byteLength - done, position + done);
      done += bytesWritten;
    }
  }
}

const ZEROS = Buffer.alloc(BLOCK_BYTES);
