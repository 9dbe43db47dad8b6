import { ADDED, BOTH, REMOVED } from "../../worker/diff-kinds.ts";

/** Unchanged lines that are shown around a change. */
const CONTEXT_COUNT = 3;
/** Fewer unchanged lines are not folded, because a fold needs a row as well. */
const FOLDED_COUNT_MIN = 4;

/** A row of a comparison: lines by their places on each side, or unchanged lines that are folded. */
export interface CompareRow {
  readonly kind: "both" | "removed" | "added" | "replaced" | "fold";
  /** line of the text before; -1: none */
  readonly left: number;
  /** line of the text after; -1: none */
  readonly right: number;
  /** corresponding line of the other text, for marking the differing part; -1: none */
  readonly pair: number;
  /** number of folded lines */
  readonly count: number;
}

/**
 * The rows of a comparison.
 * @param pieces as in `DiffReply`
 * @param isUnfolded whether the unchanged lines from this line of the text before on are shown
 */
export function compareRows(
  pieces: Uint32Array,
  isBeside: boolean,
  isUnfolded: (left: number) => boolean,
): readonly CompareRow[] {
  const rows: CompareRow[] = [];
  let left = 0;
  let right = 0;
  for (let at = 0; at < pieces.length; at += 2) {
    const [kind = BOTH, count = 0] = pieces.subarray(at, at + 2);
    if (kind === BOTH) {
      const head = at === 0 ? 0 : CONTEXT_COUNT;
      const tail = at + 2 >= pieces.length ? 0 : CONTEXT_COUNT;
      both(rows, { left, right, count, head, tail }, isUnfolded);
      left += count;
      right += count;
      continue;
    }
    const other = kind === REMOVED && pieces[at + 2] === ADDED ? (pieces[at + 3] ?? 0) : 0;
    const removed = kind === REMOVED ? count : 0;
    const added = kind === REMOVED ? other : count;
    const piece = { left, right, removed, added };
    if (isBeside) addSided(rows, piece);
    else below(rows, piece);
    left += removed;
    right += added;
    if (other > 0) at += 2;
  }
  return rows;
}

interface Both {
  readonly left: number;
  readonly right: number;
  readonly count: number;
  readonly head: number;
  readonly tail: number;
}

function both(rows: CompareRow[], piece: Both, isUnfolded: (left: number) => boolean): void {
  const { left, right, count, head, tail } = piece;
  const folded = count - head - tail;
  for (let step = 0; step < count; step += 1) {
    if (step === head && folded >= FOLDED_COUNT_MIN && !isUnfolded(left + step)) {
      rows.push({ kind: "fold", left: left + step, right: right + step, pair: -1, count: folded });
      step += folded - 1;
    } else rows.push({ kind: "both", left: left + step, right: right + step, pair: -1, count: 1 });
  }
}

interface Replaced {
  readonly left: number;
  readonly right: number;
  readonly removed: number;
  readonly added: number;
}

function addSided(rows: CompareRow[], { left, right, removed, added }: Replaced): void {
  for (let step = 0; step < Math.max(removed, added); step += 1) {
    const kind = step >= removed ? "added" : step >= added ? "removed" : "replaced";
    const places = { left: step < removed ? left + step : -1, right: step < added ? right + step : -1 };
    rows.push({ kind, ...places, pair: -1, count: 1 });
  }
}

function below(rows: CompareRow[], { left, right, removed, added }: Replaced): void {
  for (let step = 0; step < removed; step += 1) {
    rows.push({ kind: "removed", left: left + step, right: -1, pair: step < added ? right + step : -1, count: 1 });
  }
  for (let step = 0; step < added; step += 1) {
    rows.push({ kind: "added", left: -1, right: right + step, pair: step < removed ? left + step : -1, count: 1 });
  }
}

/** The differing part of two corresponding lines: between their common beginning and their common end. */
export function changedRange(before: string, after: string): { readonly head: number; readonly tail: number } {
  const shortest = Math.min(before.length, after.length);
  let head = 0;
  while (head < shortest && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < shortest - head && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  return { head, tail };
}
