import { useMemo, useState } from "preact/hooks";
import { countOf } from "../../parts/format.ts";
import { Icon } from "../../parts/icon.tsx";
import { VirtualRows } from "../../parts/virtual-rows.tsx";
import { type DiffReply, LINE_CHARACTERS_MAX, type TextLines } from "../../worker/messages.ts";
import { lineOf } from "../../worker/text-lines.ts";
import { Pieces } from "../files/pieces.tsx";
import { LINE_REM, longestLine } from "../files/text-rows.ts";
import { usePixels } from "../use-pixels.ts";
import { type CompareRow, changedRange, compareRows } from "./compare-rows.ts";

interface CompareLinesProps {
  readonly reply: DiffReply;
  readonly isBeside: boolean;
  /** first lines of folds that are open */
  readonly unfolded: ReadonlySet<number>;
  readonly onUnfold: (left: number) => void;
}

/** The lines of two texts, one below the other or side by side. */
export function CompareLines({ reply, isBeside, unfolded, onUnfold }: CompareLinesProps) {
  const rows = useMemo(
    () => compareRows(reply.pieces, isBeside, (left) => unfolded.has(left)),
    [reply, isBeside, unfolded],
  );
  const longest = useMemo(() => Math.max(longestLine(reply.before), longestLine(reply.after)), [reply]);
  const rowHeight = usePixels(LINE_REM);
  const firstChange = rows.findIndex(({ kind }) => kind !== "both" && kind !== "fold");
  const [active, setActive] = useState(Math.max(0, firstChange));
  const open = (index: number) => {
    const row = rows[index];
    if (row?.kind === "fold") onUnfold(row.left);
  };
  return (
    <div class={isBeside ? "image-sided" : "image-unified"} style={{ "--image-columns": longest }}>
      <VirtualRows
        label="Lines"
        class="image-compared"
        count={rows.length}
        rowHeight={rowHeight}
        active={active}
        onActive={setActive}
        onOpen={open}
        rowClass={(index) => `image-row-${rows[index]?.kind ?? "both"}`}
        cells={(index) => rowCells(reply, rows[index], isBeside, open, index)}
      />
    </div>
  );
}

function rowCells(
  reply: DiffReply,
  row: CompareRow | undefined,
  isBeside: boolean,
  open: (index: number) => void,
  index: number,
) {
  if (row === undefined) return [];
  if (row.kind === "fold") {
    return [
      <button key="fold" type="button" class="image-unfold" tabIndex={-1} onClick={() => open(index)}>
        <Icon name="more" />
        {countOf(row.count, "unchanged line")}
      </button>,
    ];
  }
  const { before, after } = reply;
  const [from, to] =
    row.kind === "added" ? [row.pair, row.right] : [row.left, row.kind === "removed" ? row.pair : row.right];
  const isPair = row.kind !== "both" && from >= 0 && to >= 0;
  const range = isPair ? changedRange(shownLine(before, from), shownLine(after, to)) : null;
  const left = <Line key="left" lines={before} index={row.left} sign={row.kind === "both" ? " " : "−"} range={range} />;
  const right = (
    <Line key="right" lines={after} index={row.right} sign={row.kind === "both" ? " " : "+"} range={range} />
  );
  if (isBeside) {
    return [
      <LineNumber key="n1" index={row.left} />,
      row.left < 0 ? "" : left,
      <LineNumber key="n2" index={row.right} />,
      row.right < 0 ? "" : right,
    ];
  }
  return [
    <LineNumber key="n1" index={row.left} />,
    <LineNumber key="n2" index={row.right} />,
    row.kind === "added" ? right : left,
  ];
}

function LineNumber({ index }: { readonly index: number }) {
  return <span class="image-number">{index < 0 ? "" : index + 1}</span>;
}

function shownLine(lines: TextLines, index: number): string {
  return lineOf(lines, index).slice(0, LINE_CHARACTERS_MAX);
}

interface LineProps {
  readonly lines: TextLines;
  readonly index: number;
  readonly sign: string;
  /** what differs from the other line */
  readonly range: { readonly head: number; readonly tail: number } | null;
}

function Line({ lines, index, sign, range }: LineProps) {
  const whole = lineOf(lines, index);
  const text = whole.slice(0, LINE_CHARACTERS_MAX);
  const head = range?.head ?? text.length;
  const end = Math.max(head, text.length - (range?.tail ?? 0));
  return (
    <code class="image-code">
      <span class="image-sign">{sign}</span>
      <Pieces pieces={[{ text: text.slice(0, head), kind: 0 }]} />
      {end > head ? (
        <mark class="image-differs">
          <Pieces pieces={[{ text: text.slice(head, end), kind: 0 }]} />
        </mark>
      ) : null}
      <Pieces pieces={[{ text: text.slice(end), kind: 0 }]} />
      {whole.length > text.length ? <span class="escape"> … {whole.length - text.length} more characters</span> : null}
    </code>
  );
}
