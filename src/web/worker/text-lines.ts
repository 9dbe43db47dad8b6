import type { TextEncoding, TextLines, TextReply, TextRequest } from "./messages.ts";

const LF = 0x0a;

/** The encoding of a byte order mark; UTF-8 without one. */
export function encodingOf(bytes: Uint8Array): TextEncoding {
  if (bytes[0] === 0xff && bytes[1] === 0xfe) return "utf-16le";
  if (bytes[0] === 0xfe && bytes[1] === 0xff) return "utf-16be";
  return "utf-8";
}

/** The lines of a part of a file. */
export function readText({ bytes, encoding: known, isLast }: TextRequest): TextReply {
  const all = new Uint8Array(bytes);
  const encoding = known ?? encodingOf(all);
  const usedBytes = isLast ? all.byteLength : wholeLines(all, encoding);
  const part = all.subarray(0, usedBytes);
  const lines = linesOf(part, encoding);
  const byteStarts = encoding === "utf-8" ? byteStartsOf(part, lines.starts.length - 1) : new Uint32Array(0);
  const endsInFeed = lastUnit(part, encoding) === LF;
  return { ...lines, byteStarts, usedBytes, isCut: !isLast && !endsInFeed };
}

/** The lines of a whole text. A text that ends in a line feed has no empty line after it; an empty text has no line. */
export function linesOf(bytes: Uint8Array, encoding: TextEncoding = encodingOf(bytes)): TextLines {
  // The decoder drops a byte order mark at the beginning.
  const decoded = new TextDecoder(encoding).decode(bytes);
  const crlfCount = decoded.match(/\r\n/g)?.length ?? 0;
  const text = crlfCount === 0 ? decoded : decoded.replaceAll("\r\n", "\n");
  const starts = startsOf(text);
  return { text, starts, encoding, crlfCount, replacedCount: replacedCount(bytes, encoding, text) };
}

/** Position of each line's first character, and at the end the length of the text. */
function startsOf(text: string): Uint32Array {
  const starts: number[] = text === "" ? [] : [0];
  for (let at = text.indexOf("\n"); at !== -1; at = text.indexOf("\n", at + 1)) {
    if (at + 1 < text.length) starts.push(at + 1);
  }
  starts.push(text.length);
  return Uint32Array.from(starts);
}

/** Number of invalid bytes. U+FFFD in the file itself are text, and not counted. */
function replacedCount(bytes: Uint8Array, encoding: TextEncoding, text: string): number {
  const count = text.match(/\ufffd/g)?.length ?? 0;
  if (count === 0) return 0;
  let own = 0;
  if (encoding === "utf-8") {
    for (let at = bytes.indexOf(0xef); at !== -1; at = bytes.indexOf(0xef, at + 1)) {
      if (bytes[at + 1] === 0xbf && bytes[at + 2] === 0xbd) own += 1;
    }
  }
  return count - own;
}

function byteStartsOf(bytes: Uint8Array, lineCount: number): Uint32Array {
  const starts = new Uint32Array(lineCount);
  let line = 1;
  for (let at = bytes.indexOf(LF); at !== -1 && line < lineCount; at = bytes.indexOf(LF, at + 1)) {
    starts[line] = at + 1;
    line += 1;
  }
  return starts;
}

/** Number of bytes up to the end of the last whole line; all bytes where that is in the first half of them. */
function wholeLines(bytes: Uint8Array, encoding: TextEncoding): number {
  if (encoding === "utf-8") {
    const end = bytes.lastIndexOf(LF) + 1;
    // Otherwise a part in the middle of a long line would show little text.
    return end < bytes.byteLength / 2 ? wholeCharacters(bytes) : end;
  }
  const low = encoding === "utf-16le" ? 0 : 1;
  for (let at = bytes.byteLength - (bytes.byteLength % 2) - 2; at >= 0; at -= 2) {
    if (at < bytes.byteLength / 2) break;
    if (bytes[at + low] === LF && bytes[at + 1 - low] === 0) return at + 2;
  }
  return bytes.byteLength - (bytes.byteLength % 2);
}

/** Number of bytes without the beginning of a character at the end. */
function wholeCharacters(bytes: Uint8Array): number {
  for (let back = 1; back <= 3 && back < bytes.byteLength; back += 1) {
    const byte = bytes[bytes.byteLength - back] ?? 0;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    if (byte >= 0xc0) return length > back ? bytes.byteLength - back : bytes.byteLength;
    if (byte < 0x80) break;
  }
  return bytes.byteLength;
}

function lastUnit(bytes: Uint8Array, encoding: TextEncoding): number {
  const last = bytes.at(-1) ?? 0;
  if (encoding === "utf-8") return last;
  const before = bytes.at(-2) ?? 0;
  return encoding === "utf-16le" ? before | (last << 8) : last | (before << 8);
}

/** The characters of a line, without its end. */
export function lineOf({ text, starts }: Pick<TextLines, "text" | "starts">, index: number): string {
  const start = starts[index] ?? text.length;
  const end = lineEnd(text, starts, index);
  return text.slice(start, end);
}

/** Position after the last character of a line, without its line feed. */
export function lineEnd(text: string, starts: Uint32Array, index: number): number {
  const next = starts[index + 1] ?? text.length;
  return next > (starts[index] ?? 0) && text.charCodeAt(next - 1) === LF ? next - 1 : next;
}
