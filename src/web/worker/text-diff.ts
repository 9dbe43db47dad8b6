import { diffArrays } from "diff/lib/diff/array.js";
import { ADDED, BOTH, REMOVED } from "./diff-kinds.ts";
import type { DiffReply, DiffRequest, TextLines } from "./messages.ts";
import { lineOf, linesOf } from "./text-lines.ts";

/** Bounds of one comparison: time in `milliseconds`, and lines that may be removed and added in all. */
const TIMEOUT_MS = 2000;
const EDITS_MAX = 20_000;

/** Compares two texts by lines. */
export function compare({ before, after }: DiffRequest): DiffReply {
  const left = linesOf(new Uint8Array(before ?? new ArrayBuffer(0)));
  const right = linesOf(new Uint8Array(after ?? new ArrayBuffer(0)));
  const numbers = new Map<string, number>();
  const a = numbered(left, numbers);
  const b = numbered(right, numbers);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail += 1;
  const options = { timeout: TIMEOUT_MS, maxEditLength: EDITS_MAX };
  const middle = diffArrays(a.slice(head, a.length - tail), b.slice(head, b.length - tail), options);
  const pieces: number[] = [];
  add(pieces, BOTH, head);
  if (middle === undefined) {
    add(pieces, REMOVED, a.length - head - tail);
    add(pieces, ADDED, b.length - head - tail);
  }
  for (const { added, removed, count } of middle ?? []) add(pieces, added ? ADDED : removed ? REMOVED : BOTH, count);
  add(pieces, BOTH, tail);
  return { before: left, after: right, pieces: Uint32Array.from(pieces), isComplete: middle !== undefined };
}

/** Joins pieces of the same kind. */
function add(pieces: number[], kind: number, count: number): void {
  if (count === 0) return;
  const last = pieces.length - 1;
  if (pieces[last - 1] === kind) pieces[last] = (pieces[last] ?? 0) + count;
  else pieces.push(kind, count);
}

/** A number for each line, which is the same for the same text: numbers compare quicker than long lines. */
function numbered(lines: TextLines, numbers: Map<string, number>): number[] {
  return Array.from({ length: lines.starts.length - 1 }, (_, index) => {
    const line = lineOf(lines, index);
    const number = numbers.get(line);
    if (number !== undefined) return number;
    numbers.set(line, numbers.size);
    return numbers.size - 1;
  });
}
