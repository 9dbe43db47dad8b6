import { fromBase64 } from "../../../client/base64.ts";
import type { GrepMatch } from "../../../client/types.ts";

/** A piece of a matching line. */
export interface MarkedSpan {
  readonly text: string;
  readonly isMatch: boolean;
}

/** Longest visible part of a line, in `bytes`, and how much of it precedes the first match. */
const SHOWN_BYTES_MAX = 480;
const BEFORE_BYTES_MAX = 48;

/** The part of a line around its first match, with all matches highlighted. */
export interface MarkedLine {
  readonly pieces: readonly MarkedSpan[];
  readonly isCutBefore: boolean;
  readonly isCutAfter: boolean;
}

/** The visible part of a line. The ranges of the API count bytes. */
export function markedLine(match: Pick<GrepMatch, "text" | "text_base64" | "text_truncated" | "ranges">): MarkedLine {
  const { text, text_base64: base64, text_truncated: isCut, ranges = [] } = match;
  const bytes = base64 === undefined ? new TextEncoder().encode(text) : fromBase64(base64);
  const first = ranges[0]?.start ?? 0;
  const from = first > BEFORE_BYTES_MAX ? characterStart(bytes, first - BEFORE_BYTES_MAX) : 0;
  const to = characterStart(bytes, Math.min(bytes.byteLength, from + SHOWN_BYTES_MAX));
  const pieces: MarkedSpan[] = [];
  let at = from;
  const put = (until: number, isMatch: boolean) => {
    const end = Math.min(until, to);
    if (end > at)
      pieces.push({ text: new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes.subarray(at, end)), isMatch });
    at = Math.max(at, end);
  };
  for (const { start, end } of ranges) {
    put(start, false);
    put(end, true);
  }
  put(to, false);
  return { pieces, isCutBefore: from > 0, isCutAfter: to < bytes.byteLength || isCut === true };
}

/** The position of the first byte of the character that contains a byte. */
function characterStart(bytes: Uint8Array, at: number): number {
  let start = at;
  while (start > 0 && start < bytes.byteLength && at - start < 4 && ((bytes[start] ?? 0) & 0xc0) === 0x80) start -= 1;
  return start;
}
