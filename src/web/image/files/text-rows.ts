import { LINE_CHARACTERS_MAX, type TextLines, type Tokens } from "../../worker/messages.ts";
import { lineEnd } from "../../worker/text-lines.ts";

/** Height of a line, in `rem`. */
export const LINE_REM = 1.25;
/** Columns between two stops of the tab key. */
const TAB_COLUMNS = 8;

/** Largest number of highlighted pieces per row: each is an element, and a line may have thousands. The rest is one plain piece. */
const PIECES_MAX = 256;

/** A piece of a line with one look. */
export interface TokenSpan {
  readonly text: string;
  /** index into `TOKEN_KINDS` */
  readonly kind: number;
}

/** The pieces of a part of a line, from one position of the text to another. */
export function tokenSpans(text: string, tokens: Tokens | null, line: number, start: number, end: number): TokenSpan[] {
  const pieces: TokenSpan[] = [];
  let at = start;
  const put = (until: number, kind: number) => {
    if (until > at) pieces.push({ text: text.slice(at, until), kind });
    at = Math.max(at, until);
  };
  const last = tokens?.firsts[line + 1] ?? 0;
  for (let index = tokens?.firsts[line] ?? 0; index < last && pieces.length < PIECES_MAX; index += 1) {
    const [from = 0, to = 0, kind = 0] = tokens?.triples.subarray(3 * index, 3 * index + 3) ?? [];
    if (to <= start || from >= end) continue;
    put(Math.max(start, from), 0);
    put(Math.min(end, to), kind);
  }
  put(end, 0);
  return pieces;
}

/** Rows of a text: lines, or parts of lines if they are wrapped. */
export interface TextRows {
  /** index of each row's line */
  readonly lines: Uint32Array;
  /** position of each row's first character */
  readonly starts: Uint32Array;
}

/** End of the visible part of a line. */
export function shownEnd({ text, starts }: TextLines, line: number): number {
  return Math.min(lineEnd(text, starts, line), (starts[line] ?? 0) + LINE_CHARACTERS_MAX);
}

/** The rows of a text. @param columns width of the place; null: lines are not wrapped */
export function textRows(lines: TextLines, columns: number | null): TextRows {
  const count = lines.starts.length - 1;
  if (columns === null) {
    return { lines: Uint32Array.from({ length: count }, (_, line) => line), starts: lines.starts.subarray(0, count) };
  }
  const rowLines: number[] = [];
  const rowStarts: number[] = [];
  for (let line = 0; line < count; line += 1) {
    let at = lines.starts[line] ?? 0;
    const end = shownEnd(lines, line);
    do {
      rowLines.push(line);
      rowStarts.push(at);
      at = rowEnd(lines.text, at, end, columns);
    } while (at < end);
  }
  return { lines: Uint32Array.from(rowLines), starts: Uint32Array.from(rowStarts) };
}

/** Position after the last character that fits into a row. A row has at least one. */
function rowEnd(text: string, start: number, end: number, columns: number): number {
  let used = 0;
  for (let at = start; at < end; at += 1) {
    const code = text.charCodeAt(at);
    used += code === 9 ? TAB_COLUMNS - (used % TAB_COLUMNS) : columnsOf(code);
    if (used > columns && at > start) return isLowSurrogate(code) && at - 1 > start ? at - 1 : at;
  }
  return end;
}

/** East Asian characters have two columns, invisible ones the width of their escape, all others one column. */
function columnsOf(code: number): number {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return 4;
  if (code < 0x1100) return 1;
  if ((code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f))
    return 6;
  // Each half of a surrogate pair is one column, as most pairs are emojis or East Asian.
  return code >= 0xd800 && code <= 0xdfff ? 1 : code < 0x2e80 ? 1 : 2;
}

function isLowSurrogate(code: number): boolean {
  return code >= 0xdc00 && code <= 0xdfff;
}

/** The row that a line begins in. */
export function rowOfLine({ lines }: TextRows, line: number): number {
  return countBelow(lines, line);
}

/** The row that has a position of the text. */
export function rowAt({ starts }: TextRows, position: number): number {
  return Math.max(0, countBelow(starts, position + 1) - 1);
}

/** How many of the ascending numbers are below a limit. */
function countBelow(numbers: Uint32Array, limit: number): number {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((numbers[middle] ?? 0) < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Columns of the longest visible line. */
export function longestLine(lines: TextLines): number {
  let longest = 0;
  for (let line = 0; line + 1 < lines.starts.length; line += 1) {
    const start = lines.starts[line] ?? 0;
    const end = shownEnd(lines, line);
    // Most lines are shorter than the longest one, whatever their characters.
    if ((end - start) * TAB_COLUMNS <= longest) continue;
    let columns = 0;
    for (let at = start; at < end; at += 1) {
      const code = lines.text.charCodeAt(at);
      columns += code === 9 ? TAB_COLUMNS - (columns % TAB_COLUMNS) : columnsOf(code);
    }
    longest = Math.max(longest, columns);
  }
  return longest;
}
