import { useMemo, useRef, useState } from "preact/hooks";
import { classes } from "../../parts/classes.ts";
import { Icon } from "../../parts/icon.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { countOf } from "../../text/format.ts";
import type { DiffReply, TextLines } from "../../worker/messages.ts";
import { lineEnd } from "../../worker/text-lines.ts";
import { LINE_REM, longestLine, rowOfLine, shownEnd, type TextRows, textRows } from "../files/text-rows.ts";
import { TokenText } from "../files/token-text.tsx";
import { Measure, useColumns } from "../files/use-columns.tsx";
import { usePixels } from "../use-pixels.ts";
import { type CompareRow, changedRange, compareRows } from "./compare-rows.ts";

interface CompareLinesProps {
  readonly reply: DiffReply;
  readonly isBeside: boolean;
}

/** A visible row: a line, or a part of one if both sides share the width. */
interface SeenRow {
  readonly row: CompareRow;
  /** which part of the line */
  readonly part: number;
}

/** Characters of a side without its text: the number, the sign and the space between them. */
const BESIDE_CHARACTERS = 11;
/** Width from which on both sides fit next to each other, in characters. */
const BESIDE_COLUMNS_MIN = 40;

/** The lines of two texts, one below the other or side by side. */
export function CompareLines({ reply, isBeside: isBesideWanted }: CompareLinesProps) {
  const place = useRef<HTMLDivElement>(null);
  const columns = useColumns(place, BESIDE_CHARACTERS * 2);
  // A column on a telephone would hold one word.
  const isBeside = isBesideWanted && (columns === 0 || columns >= BESIDE_COLUMNS_MIN);
  const half = isBeside && columns > 0 ? Math.max(12, Math.floor(columns / 2)) : null;
  const [unfolded, setUnfolded] = useState<ReadonlySet<number>>(new Set());
  const lines = useMemo(
    () => compareRows(reply.pieces, isBeside, (left) => unfolded.has(left)),
    [reply, isBeside, unfolded],
  );
  const left = useMemo(() => textRows(reply.before, half), [reply, half]);
  const right = useMemo(() => textRows(reply.after, half), [reply, half]);
  const rows = useMemo(() => seenRows(lines, left, right), [lines, left, right]);
  const longest = useMemo(() => Math.max(longestLine(reply.before), longestLine(reply.after)), [reply]);
  const rowHeight = usePixels(LINE_REM);
  const [active, setActive] = useState(() =>
    Math.max(
      0,
      lines.findIndex(({ kind }) => kind !== "both" && kind !== "fold"),
    ),
  );
  const open = (index: number) => {
    const row = rows[index]?.row;
    if (row?.kind === "fold") setUnfolded(new Set([...unfolded, row.left]));
  };
  const sides: Sides = { reply, left, right };
  return (
    <div
      ref={place}
      class={classes("relative stack fill gap-2 shrink", isBeside ? "image-sided" : "image-unified")}
      style={{ "--image-columns": longest }}
    >
      <VirtualRows
        label="Lines"
        class="image-compared"
        count={rows.length}
        rowHeight={rowHeight}
        active={active}
        onActive={setActive}
        onOpen={open}
        rowClass={(index) => `image-row-${rows[index]?.row.kind ?? "both"}`}
        cells={(index) => rowCells(sides, rows[index], isBeside, () => open(index))}
      />
      <Measure />
    </div>
  );
}

interface Sides {
  readonly reply: DiffReply;
  readonly left: TextRows;
  readonly right: TextRows;
}

function seenRows(rows: readonly CompareRow[], left: TextRows, right: TextRows): SeenRow[] {
  return rows.flatMap((row) => {
    if (row.kind === "fold") return [{ row, part: 0 }];
    const count = Math.max(partCount(left, row.left), partCount(right, row.right));
    return Array.from({ length: count }, (_, part) => ({ row, part }));
  });
}

function partCount(rows: TextRows, line: number): number {
  return line < 0 ? 0 : rowOfLine(rows, line + 1) - rowOfLine(rows, line);
}

function rowCells(sides: Sides, seen: SeenRow | undefined, isBeside: boolean, unfold: () => void) {
  if (seen === undefined) return [];
  const { row, part } = seen;
  if (row.kind === "fold") {
    return [
      <button key="fold" type="button" class="image-unfold row gap-2 quiet" tabIndex={-1} onClick={unfold}>
        <Icon name="more" />
        {countOf(row.count, "unchanged line")}
      </button>,
    ];
  }
  const { before, after } = sides.reply;
  const [from, to] =
    row.kind === "added" ? [row.pair, row.right] : [row.left, row.kind === "removed" ? row.pair : row.right];
  const isPair = row.kind !== "both" && from >= 0 && to >= 0;
  const range = isPair ? changedRange(shownLine(before, from), shownLine(after, to)) : null;
  const isSame = row.kind === "both";
  const left = (
    <Line
      key="left"
      lines={before}
      rows={sides.left}
      index={row.left}
      part={part}
      sign={isSame ? " " : "−"}
      range={range}
    />
  );
  const right = (
    <Line
      key="right"
      lines={after}
      rows={sides.right}
      index={row.right}
      part={part}
      sign={isSame ? " " : "+"}
      range={range}
    />
  );
  const numbers = [row.left, row.right].map((index) => (
    <span key={`n${index}`} class="image-number block fixed faint small tabular">
      {index < 0 || part > 0 ? "" : index + 1}
    </span>
  ));
  if (!isBeside) return [...numbers, row.kind === "added" ? right : left];
  return [numbers[0], row.left < 0 ? "" : left, numbers[1], row.right < 0 ? "" : right];
}

function shownLine(lines: TextLines, index: number): string {
  return lines.text.slice(lines.starts[index] ?? 0, shownEnd(lines, index));
}

interface LineProps {
  readonly lines: TextLines;
  readonly rows: TextRows;
  readonly index: number;
  readonly part: number;
  readonly sign: string;
  /** the part that differs from the corresponding line */
  readonly range: { readonly head: number; readonly tail: number } | null;
}

function Line({ lines, rows, index, part, sign, range }: LineProps) {
  const row = rowOfLine(rows, index) + part;
  if (rows.lines[row] !== index) return null;
  const start = lines.starts[index] ?? 0;
  const last = shownEnd(lines, index);
  const isLast = rows.lines[row + 1] !== index;
  const from = rows.starts[row] ?? start;
  const to = isLast ? last : (rows.starts[row + 1] ?? last);
  const markFrom = range === null ? to : Math.min(to, Math.max(from, start + range.head));
  const markTo = range === null ? to : Math.max(markFrom, Math.min(to, last - range.tail));
  const hidden = lineEnd(lines.text, lines.starts, index) - last;
  const piece = (a: number, b: number) => <TokenText pieces={[{ text: lines.text.slice(a, b), kind: 0 }]} />;
  return (
    <code class="image-code small">
      <span class="image-sign muted">{part === 0 ? sign : " "}</span>
      {piece(from, markFrom)}
      {markTo > markFrom ? <mark class="image-differs">{piece(markFrom, markTo)}</mark> : null}
      {piece(markTo, to)}
      {isLast && hidden > 0 ? <span class="escape"> … {countOf(hidden, "more character")}</span> : null}
    </code>
  );
}
