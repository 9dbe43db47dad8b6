import { GREP_TEXT_BYTES_MAX, type GrepLine, type GrepLineKind } from "../../domain/tree/grep.ts";
import { type ByteString, bytesToByteString } from "../../domain/tree/guest-path.ts";
import { GREP_FOUND_BYTES_MAX, GREP_FOUND_NUMBERS_COUNT_MAX } from "../limits.ts";
import { type Cancellation, Pacer } from "../pacer.ts";

/**
 * The lines of a search in two arrays. The receiver of the arrays from a thread does no work for each line, of which there may be a
 * hundred thousand.
 */
export interface PackedLines {
  /** for each line FIELDS_COUNT numbers, and two for each range */
  readonly numbers: Float64Array<ArrayBuffer>;
  /** paths and texts */
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** Numbers of a line: see `pack`. */
const FIELDS_COUNT = 9;
const LENGTH_FIELD = 4;
const FEED_FIELD = 5;

/** A line to be packed. */
export interface LineRecord {
  readonly kind: GrepLineKind;
  readonly line: number;
  readonly offset: number;
  length: number;
  hasFeed: boolean;
  readonly text: Uint8Array;
  /** starts and ends, in turn */
  readonly ranges: readonly number[];
}

/** Collects the lines of a search, file by file, up to a size. */
export class LinePacker {
  #numbers = new Float64Array(1024);
  #numbersCount = 0;
  #bytes = Buffer.allocUnsafeSlow(16_384);
  #bytesCount = 0;
  #path: ByteString | null = null;
  #pathStart = 0;
  #lastStart = 0;
  /** of all lines, with the path of each: the size of a result that is not packed */
  #foundBytes = 0;

  /** True when no further line may be added. */
  get isFull(): boolean {
    return this.#foundBytes > GREP_FOUND_BYTES_MAX || this.#numbersCount >= GREP_FOUND_NUMBERS_COUNT_MAX;
  }

  /** @param line whose text has at most GREP_TEXT_BYTES_MAX bytes */
  add(path: ByteString, { kind, line, offset, length, hasFeed, text, ranges }: LineRecord): void {
    if (path !== this.#path) {
      this.#path = path;
      this.#pathStart = this.#bytesCount;
      this.#append(Buffer.from(path, "latin1"));
    }
    const textStart = this.#bytesCount;
    this.#append(text);
    const fields = [
      this.#pathStart,
      path.length,
      line,
      offset,
      length,
      Number(hasFeed),
      textStart,
      text.length,
      // Negative for a line of context.
      kind === "match" ? ranges.length : -1,
    ];
    this.#lastStart = this.#numbersCount;
    this.#reserveNumbers(fields.length + ranges.length);
    this.#numbers.set(fields, this.#numbersCount);
    this.#numbers.set(ranges, this.#numbersCount + fields.length);
    this.#numbersCount += fields.length + ranges.length;
    this.#foundBytes += path.length + text.length;
  }

  /** Sets the length of the line that was added last, which was not known before its end was read. */
  setLength(length: number, hasFeed: boolean): void {
    this.#numbers[this.#lastStart + LENGTH_FIELD] = length;
    this.#numbers[this.#lastStart + FEED_FIELD] = Number(hasFeed);
  }

  packed(): PackedLines {
    const bytes = new Uint8Array(this.#bytesCount);
    bytes.set(this.#bytes.subarray(0, this.#bytesCount));
    return { numbers: this.#numbers.slice(0, this.#numbersCount), bytes };
  }

  #append(bytes: Uint8Array): void {
    const needed = this.#bytesCount + bytes.length;
    if (needed > this.#bytes.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(needed, 2 * this.#bytes.length));
      this.#bytes.copy(larger, 0, 0, this.#bytesCount);
      this.#bytes = larger;
    }
    this.#bytes.set(bytes, this.#bytesCount);
    this.#bytesCount = needed;
  }

  #reserveNumbers(count: number): void {
    if (this.#numbersCount + count <= this.#numbers.length) return;
    const larger = new Float64Array(Math.max(this.#numbersCount + count, 2 * this.#numbers.length));
    larger.set(this.#numbers.subarray(0, this.#numbersCount));
    this.#numbers = larger;
  }
}

/** The lines, in their order. It yields to the event loop. */
export async function* unpacked(
  { numbers, bytes }: PackedLines,
  cancellation: Cancellation | null = null,
): AsyncGenerator<GrepLine, void, undefined> {
  const pacer = new Pacer(cancellation);
  let path = "" as ByteString;
  let pathAt = -1;
  for (let at = 0; at < numbers.length; ) {
    const fields = numbers.subarray(at, at + FIELDS_COUNT);
    const [pathStart = 0, pathLength = 0, line = 0, offset = 0, length = 0, hasFeed = 0] = fields;
    const [textStart = 0, textLength = 0, rangeNumbersCount = 0] = fields.subarray(6);
    at += FIELDS_COUNT;
    const ranges: { start: number; end: number }[] = [];
    for (const end = at + Math.max(0, rangeNumbersCount); at < end; at += 2) {
      ranges.push({ start: numbers[at] ?? 0, end: numbers[at + 1] ?? 0 });
    }
    if (pathAt !== pathStart) path = bytesToByteString(bytes.subarray(pathStart, pathStart + pathLength));
    pathAt = pathStart;
    yield {
      path,
      kind: rangeNumbersCount < 0 ? "context" : "match",
      line,
      offset,
      length,
      hasFeed: hasFeed === 1,
      bytes: bytes.subarray(textStart, textStart + textLength),
      isCut: textLength < length,
      ranges,
    };
    if (pacer.shouldYield()) await pacer.yield();
  }
}

/** The part of a line that a result has: at most GREP_TEXT_BYTES_MAX bytes, without cutting a character of UTF-8. */
export function lineText(line: Buffer): Buffer {
  if (line.length <= GREP_TEXT_BYTES_MAX) return line;
  let end = GREP_TEXT_BYTES_MAX;
  while (end > GREP_TEXT_BYTES_MAX - 3 && ((line[end] ?? 0) & 0xc0) === 0x80) end--;
  return line.subarray(0, end);
}
