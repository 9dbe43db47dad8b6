import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";

/*
 * A block is a sequence of runs: two bytes, of which the upper bit is the index of the stream and the others are the number
 * of bytes, little-endian, and the bytes.
 */
const HEAD_BYTES = 2;
const RUN_BYTES_MAX = 0x7fff;
const BLOCK_BYTES_MIN = 4096;

/** A piece of a process's output. */
export interface OutputChunk {
  readonly stream: OutputStream;
  readonly bytes: Uint8Array;
}

interface Block {
  readonly bytes: Uint8Array;
  used: number;
  next: Block | null;
}

function newBlock(bytes: number): Block {
  return { bytes: new Uint8Array(Math.max(BLOCK_BYTES_MIN, bytes)), used: 0, next: null };
}

/**
 * Buffers the output of a process for its readers, in the order of its arrival. Adjacent chunks of one stream become one run:
 * even single bytes of alternating streams take only three bytes each. All readers share the blocks. A block becomes garbage
 * when the slowest reader has passed it.
 */
export class OutputBlocks {
  #last = newBlock(0);
  /** offset in the last block of the run that further output of its stream extends; -1: none */
  #run = -1;
  #stream: OutputStream = "stdout";

  /** A reader of everything that is pushed from now on. */
  reader(): OutputReader {
    // A run that began before must not grow: the reader begins behind it.
    this.#run = -1;
    return new OutputReader(this.#last);
  }

  /** Adds a copy of `chunk`. */
  push(stream: OutputStream, chunk: Uint8Array): void {
    for (let rest = chunk; rest.byteLength > 0; ) {
      const block = this.#blockFor(stream, rest.byteLength);
      const length = lengthOf(block.bytes, this.#run);
      const part = rest.subarray(0, Math.min(RUN_BYTES_MAX - length, block.bytes.byteLength - block.used));
      block.bytes.set(part, block.used);
      block.used += part.byteLength;
      const head = ((length + part.byteLength) & RUN_BYTES_MAX) | (OUTPUT_STREAMS.indexOf(stream) << 15);
      block.bytes[this.#run] = head & 0xff;
      block.bytes[this.#run + 1] = head >> 8;
      rest = rest.subarray(part.byteLength);
    }
  }

  /** The last block, with room for a byte in a run of the stream. */
  #blockFor(stream: OutputStream, neededBytes: number): Block {
    const { bytes, used } = this.#last;
    const isSame = this.#run >= 0 && this.#stream === stream && lengthOf(bytes, this.#run) < RUN_BYTES_MAX;
    if (isSame && used < bytes.byteLength) return this.#last;
    if (bytes.byteLength - used <= HEAD_BYTES) {
      this.#last.next = newBlock(HEAD_BYTES + Math.min(neededBytes, RUN_BYTES_MAX));
      this.#last = this.#last.next;
    }
    this.#stream = stream;
    this.#run = this.#last.used;
    this.#last.used += HEAD_BYTES;
    return this.#last;
  }
}

/** Reads the output from one position. */
export class OutputReader {
  #block: Block;
  /** offset of the present run */
  #run: number;
  /** offset of its first byte that was not read */
  #at: number;

  constructor(block: Block) {
    this.#block = block;
    this.#run = block.used;
    this.#at = block.used + HEAD_BYTES;
  }

  /** Everything that was not read, for another reader. */
  rest(): OutputChunk[] {
    const copy = new OutputReader(this.#block);
    copy.#run = this.#run;
    copy.#at = this.#at;
    const chunks: OutputChunk[] = [];
    for (let chunk = copy.next(); chunk !== null; chunk = copy.next()) chunks.push(chunk);
    return chunks;
  }

  /** The next bytes of one stream; null when there are none yet. They do not change. */
  next(): OutputChunk | null {
    for (;;) {
      const { bytes, used, next } = this.#block;
      const end = this.#run < used ? this.#run + HEAD_BYTES + lengthOf(bytes, this.#run) : used;
      if (this.#at < end) {
        const chunk = { stream: streamOf(bytes, this.#run), bytes: bytes.subarray(this.#at, end) };
        this.#at = end;
        return chunk;
      }
      if (end < used) this.#run = end;
      else if (next === null) return null;
      else {
        this.#block = next;
        this.#run = 0;
      }
      this.#at = this.#run + HEAD_BYTES;
    }
  }
}

function headOf(bytes: Uint8Array, run: number): number {
  return (bytes[run] ?? 0) | ((bytes[run + 1] ?? 0) << 8);
}

function lengthOf(bytes: Uint8Array, run: number): number {
  return headOf(bytes, run) & RUN_BYTES_MAX;
}

function streamOf(bytes: Uint8Array, run: number): OutputStream {
  return OUTPUT_STREAMS[headOf(bytes, run) >> 15] ?? "stdout";
}
