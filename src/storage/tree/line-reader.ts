const NEWLINE = 0x0a;

/** A part of a file, in the order of its bytes. Bytes are valid until the next part is requested. */
export type LinePart =
  /** whole lines, without the line feed of the last one */
  | { readonly kind: "lines"; readonly bytes: Buffer; readonly offset: number; readonly hasFeed: boolean }
  /** the beginning of a line that is too long */
  | { readonly kind: "cut"; readonly bytes: Buffer; readonly offset: number }
  /** the end of the line whose beginning came before, with the length of the line */
  | { readonly kind: "end"; readonly length: number; readonly hasFeed: boolean };

/** Splits the chunks of a file into whole lines. Of a line that exceeds the limit only the part up to it is returned. */
export class LineReader {
  readonly #lineBytesMax: number;
  #rest: Buffer = Buffer.alloc(0);
  /** bytes of all chunks so far */
  #offset = 0;
  /** start of the long line whose end was not read yet */
  #cutStart: number | null = null;

  constructor(lineBytesMax: number) {
    this.#lineBytesMax = lineBytesMax;
  }

  *parts(chunk: Uint8Array): Generator<LinePart, void, undefined> {
    let bytes = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    let offset = this.#offset;
    this.#offset += bytes.length;
    if (this.#cutStart !== null) {
      const feed = bytes.indexOf(NEWLINE);
      if (feed === -1) return;
      yield { kind: "end", length: offset + feed - this.#cutStart, hasFeed: true };
      this.#cutStart = null;
      bytes = bytes.subarray(feed + 1);
      offset += feed + 1;
    }
    if (this.#rest.length > 0) {
      offset -= this.#rest.length;
      bytes = Buffer.concat([this.#rest, bytes]);
    }
    const end = bytes.lastIndexOf(NEWLINE);
    if (end >= 0) yield* this.#wholeLines(bytes.subarray(0, end), offset);
    const rest = bytes.subarray(end + 1);
    const isLong = rest.length > this.#lineBytesMax;
    // Copied, because the chunk's buffer is reused.
    this.#rest = isLong ? Buffer.alloc(0) : Buffer.from(rest);
    if (!isLong) return;
    this.#cutStart = offset + end + 1;
    yield { kind: "cut", bytes: rest.subarray(0, this.#lineBytesMax), offset: this.#cutStart };
  }

  /** The remaining part after the last chunk. */
  *rest(): Generator<LinePart, void, undefined> {
    if (this.#cutStart !== null) yield { kind: "end", length: this.#offset - this.#cutStart, hasFeed: false };
    else if (this.#rest.length > 0) {
      yield { kind: "lines", bytes: this.#rest, offset: this.#offset - this.#rest.length, hasFeed: false };
    }
  }

  *#wholeLines(bytes: Buffer, offset: number): Generator<LinePart, void, undefined> {
    for (let start = 0; ; ) {
      const long = this.#longLine(bytes, start);
      const whole = long === -1 ? bytes.subarray(start) : bytes.subarray(start, Math.max(start, long - 1));
      if (long !== start) yield { kind: "lines", bytes: whole, offset: offset + start, hasFeed: true };
      if (long === -1) return;
      yield { kind: "cut", bytes: bytes.subarray(long, long + this.#lineBytesMax), offset: offset + long };
      const feed = bytes.indexOf(NEWLINE, long + this.#lineBytesMax);
      yield { kind: "end", length: (feed === -1 ? bytes.length : feed) - long, hasFeed: true };
      if (feed === -1) return;
      start = feed + 1;
    }
  }

  /** Start of the first line that is too long, or -1. It looks for line feeds only as often as needed. */
  #longLine(bytes: Buffer, start: number): number {
    let position = start;
    while (bytes.length - position > this.#lineBytesMax) {
      const end = bytes.lastIndexOf(NEWLINE, position + this.#lineBytesMax);
      if (end < position) return position;
      position = end + 1;
    }
    return -1;
  }
}
