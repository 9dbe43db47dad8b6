import { createHash } from "node:crypto";

export const BLOCK_BYTES = 4096;
const ZEROS = Buffer.alloc(BLOCK_BYTES);

/** Content of a file, which stores only blocks that are not all zeros. Immutable: each change returns another content. */
export class Content {
  static readonly empty = new Content(0, new Map());
  readonly size: number;
  readonly blocks: ReadonlyMap<number, Buffer>;
  #digest: string | null = null;

  constructor(size: number, blocks: ReadonlyMap<number, Buffer>) {
    this.size = size;
    this.blocks = blocks;
  }

  /** The digest as `fsops.c` computes it: over the number and the bytes of each block that is not all zeros. */
  get digest(): string {
    this.#digest ??= digestOfBlocks([...this.blocks].sort(([a], [b]) => a - b));
    return this.#digest;
  }

  write(offset: number, bytes: Buffer): Content {
    return this.#changed(
      Math.max(this.size, offset + bytes.length),
      offset,
      offset + bytes.length,
      (block, at, start) => bytes.copy(block, at, start - offset, start - offset + BLOCK_BYTES - at),
    );
  }

  /** Writes zeros from `offset`; the size grows to `size` if that is more. */
  clear(offset: number, end: number, size = this.size): Content {
    const blocks = new Map(this.blocks);
    for (const [number, block] of this.blocks) {
      const start = number * BLOCK_BYTES;
      const from = Math.max(offset, start);
      const to = Math.min(end, start + BLOCK_BYTES);
      if (from < to) put(blocks, number, Buffer.from(block).fill(0, from - start, to - start));
    }
    return new Content(Math.max(size, this.size), blocks);
  }

  resize(size: number): Content {
    const cut = size < this.size ? this.clear(size, this.size) : this;
    return new Content(size, cut.blocks);
  }

  /** The bytes `[start, end)`, holes as zeros. */
  slice(start: number, end: number): Buffer {
    const bytes = Buffer.alloc(end - start);
    for (const [number, block] of this.blocks) {
      const at = number * BLOCK_BYTES;
      const from = Math.max(start, at);
      const to = Math.min(end, at + BLOCK_BYTES);
      if (from < to) block.copy(bytes, from - start, from - at, to - at);
    }
    return bytes;
  }

  #changed(size: number, from: number, to: number, copy: (block: Buffer, at: number, start: number) => void): Content {
    const blocks = new Map(this.blocks);
    for (let start = from; start < to; start = (Math.floor(start / BLOCK_BYTES) + 1) * BLOCK_BYTES) {
      const number = Math.floor(start / BLOCK_BYTES);
      const block = Buffer.from(blocks.get(number) ?? ZEROS);
      copy(block, start % BLOCK_BYTES, start);
      put(blocks, number, block);
    }
    return new Content(size, blocks);
  }
}

function put(blocks: Map<number, Buffer>, number: number, block: Buffer): void {
  if (block.equals(ZEROS)) blocks.delete(number);
  else blocks.set(number, block);
}

/** `blocks` in their order, without blocks of zeros. */
export function digestOfBlocks(blocks: Iterable<readonly [number, Uint8Array]>): string {
  const hash = createHash("sha256");
  const head = Buffer.alloc(8);
  for (const [number, block] of blocks) {
    if (ZEROS.equals(block)) continue;
    head.writeBigUInt64LE(BigInt(number));
    hash.update(head).update(block);
  }
  return hash.digest("hex");
}

/** The bytes that `fsops.c` writes for a seed other than zero. */
export function pattern(size: number, seed: number): Buffer {
  const bytes = Buffer.alloc(Math.ceil(size / 4) * 4);
  let state = seed >>> 0;
  for (let at = 0; at < size; at += 4) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    bytes.writeInt32LE(state, at);
  }
  return bytes.subarray(0, size);
}
