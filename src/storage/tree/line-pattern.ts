import { isUtf8 } from "node:buffer";
import { RE2JS, RE2JSException } from "re2js";
import { ApiError } from "../../domain/errors.ts";
import type { GrepCase } from "../../domain/tree/grep.ts";
import { GREP_PROGRAM_SIZE_MAX } from "../limits.ts";
import type { Cancellation } from "../pacer.ts";
import { patternSize } from "./pattern-size.ts";

/** Patterns of which a line must match one. All methods take time that is linear in the text for each match. */
export class LinePattern {
  readonly #expression: RE2JS;

  /** @throws ApiError `validation_error` */
  constructor(patterns: readonly string[], matchCase: GrepCase) {
    const ignoresCase = matchCase === "insensitive" || (matchCase === "smart" && !patterns.some(hasUpperCase));
    this.#expression = compileField("pattern", () => compiled(patterns, ignoresCase ? RE2JS.CASE_INSENSITIVE : 0));
  }

  /** largest number of instructions for each character */
  get programSize(): number {
    return this.#expression.programSize();
  }

  test(text: string): boolean {
    return this.#expression.test(text);
  }

  /**
   * Starts and ends, in turn, of the matches in a line as positions in its bytes: the first one, and all that begin
   * before `bytesMax`. As in ripgrep, matches do not overlap, and an empty one does not follow another immediately.
   * @param text the bytes, decoded
   * @throws the error of the cancellation, between two matches
   */
  ranges(text: string, bytes: Buffer, bytesMax: number, cancellation: Cancellation): number[] {
    const matcher = this.#expression.matcher(text);
    const position = bytePositions(text, bytes);
    const ranges: number[] = [];
    let last = -1;
    while (matcher.find()) {
      cancellation.throwIfAborted();
      const [start, end] = [matcher.start(), matcher.end()];
      if (start === end && start === last) continue;
      last = end;
      const from = position(start);
      if (ranges.length > 0 && from >= bytesMax) break;
      ranges.push(from, position(end));
    }
    return ranges;
  }
}

/** Compiles a field of a request. @throws ApiError `validation_error` */
export function compileField<T>(field: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const reason = error instanceof RE2JSException || field === "glob" ? error.message : "it is too complex";
    throw new ApiError("validation_error", `${field} is not valid: ${reason}`, { field }, { cause: error });
  }
}

function compiled(patterns: readonly string[], flags: number): RE2JS {
  const [first = ""] = patterns;
  // Before compiling, which nothing can cancel, and which takes about a kilobyte for each instruction.
  const size = patterns.reduce((sum, pattern) => sum + patternSize(pattern), 0);
  if (size > GREP_PROGRAM_SIZE_MAX) throw new RangeError("the patterns are too large together");
  return RE2JS.compile(patterns.length === 1 ? first : patterns.map((pattern) => grouped(pattern)).join("|"), flags);
}

/** The pattern in a group, which no part of it can end. @throws RE2JSException */
function grouped(pattern: string): string {
  RE2JS.compile(pattern);
  try {
    RE2JS.compile(`(?:${pattern})`);
    return `(?:${pattern})`;
  } catch (error) {
    if (!(error instanceof RE2JSException)) throw error;
    // Only a quotation lasts until the end of a valid pattern.
    return `(?:${pattern}\\E)`;
  }
}

/** Parts of a pattern. */
const TOKENS = new RegExp(
  [
    // literal text
    String.raw`\\Q(?<quoted>.*?)(?:\\E|$)`,
    // a literal character in hexadecimal digits
    String.raw`\\x(?:\{(?<code>[0-9a-fA-F]+)\}|(?<byte>[0-9a-fA-F]{2}))`,
    // classes, other escapes, names and flags of groups
    String.raw`\\[pP](?:\{[^}]*\}|.)|\[:\^?\w+:\]|\\.|\(\?P?<[^>]*>|\(\?[a-zA-Z-]+[:)]`,
    "(?<char>.)",
  ].join("|"),
  "gsu",
);

/** True when a pattern has an upper-case letter that stands for itself. */
function hasUpperCase(pattern: string): boolean {
  for (const { groups = {} } of pattern.matchAll(TOKENS)) {
    const code = Number.parseInt(groups["code"] ?? groups["byte"] ?? "0", 16);
    const text = groups["quoted"] ?? groups["char"] ?? (code <= 0x10ffff ? String.fromCodePoint(code) : "");
    if (/\p{Uppercase}/u.test(text)) return true;
  }
  return false;
}

/** A function from positions in a text to those in the bytes it was decoded from. Positions must not decrease. */
function bytePositions(text: string, bytes: Buffer): (at: number) => number {
  // No character has fewer bytes than units.
  if (text.length === bytes.length) return (at) => at;
  const isValid = isUtf8(bytes);
  let textAt = 0;
  let bytesAt = 0;
  return (at) => {
    if (isValid) bytesAt += Buffer.byteLength(text.slice(textAt, at));
    else for (const char of text.slice(textAt, at)) bytesAt += byteLengthOf(char, bytes, bytesAt);
    textAt = at;
    return bytesAt;
  };
}

const REPLACEMENT = "\ufffd";

/** Number of bytes at a position that were decoded to a character. */
function byteLengthOf(char: string, bytes: Buffer, at: number): number {
  if (char !== REPLACEMENT) return Buffer.byteLength(char);
  const [first = 0, second = 0] = bytes.subarray(at, at + 2);
  // A decoder replaces the longest part that could begin a character: see the Encoding Standard, "UTF-8 decoder".
  const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 1;
  const min = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
  const max = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
  if (second < min || second > max) return 1;
  let count = 2;
  while (count < length && ((bytes[at + count] ?? 0) & 0xc0) === 0x80) count++;
  return count;
}
