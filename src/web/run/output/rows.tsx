import { hasHidden, PARTS_MAX, partsOf } from "../../text/printable.ts";
import { type Match, placesOf } from "./find.ts";
import { lineSpans } from "./line-spans.ts";
import type { OutputLine } from "./output-buffer.ts";
import { classesOf, colorsOf, PLAIN_STYLE } from "./sgr.ts";

export interface RowProps {
  readonly line: OutputLine;
  readonly hasTime: boolean;
  /** true: lines of standard error have a label */
  readonly hasStream: boolean;
  readonly words: string;
  /** true: it is the selected match */
  readonly isCurrent: boolean;
  /** distance from the first row, in `CSS pixels` */
  readonly top: number;
}

/** One line of output. The bytes of the guest only become text nodes. */
export function Row({ line, hasTime, hasStream, words, isCurrent, top }: RowProps) {
  const { stream, text, cutCharacters, time } = line;
  const name = `run-line run-line-${stream}${isCurrent ? " run-line-current" : ""}`;
  const pieces = lineSpans(text, line.spans, words === "" ? NOTHING_FOUND : placesOf(text, words));
  const partsMax = Math.ceil(PARTS_MAX / Math.max(1, pieces.length));
  return (
    <div class={name} style={{ top: `${top}px` }}>
      {hasTime ? <time class="run-line-time rigid faint tabular">{timeOf(time)}</time> : null}
      {hasStream ? <span class="run-line-stream rigid faint">{stream === "stderr" ? "err" : ""}</span> : null}
      <span class="run-line-text">
        {pieces.map((piece, index) => (
          <PieceText key={index} {...piece} partsMax={partsMax} />
        ))}
        {cutCharacters === 0 ? null : <span class="escape">… {cutCharacters} more characters</span>}
      </span>
    </div>
  );
}

const NOTHING_FOUND: readonly Match[] = [];

function PieceText({
  text,
  style,
  isFound,
  partsMax,
}: {
  readonly text: string;
  readonly style: number;
  readonly isFound: boolean;
  readonly partsMax: number;
}) {
  const printable = <PrintableText text={text} partsMax={partsMax} />;
  const marked = isFound ? <mark>{printable}</mark> : printable;
  return style === PLAIN_STYLE ? (
    marked
  ) : (
    <span class={classesOf(style)} style={colorsOf(style)}>
      {marked}
    </span>
  );
}

function PrintableText({ text, partsMax }: { readonly text: string; readonly partsMax: number }) {
  // Tabs are drawn as tabs.
  if (!hasHidden(text)) return text;
  return partsOf(text, partsMax).map(({ text: part, isEscape }, index) => {
    if (!isEscape) return part;
    if (part === "\\t") return "\t";
    return (
      <span key={index} class="escape">
        {part}
      </span>
    );
  });
}

/** The local time of day, in milliseconds: JavaScript dates have no finer unit. */
function timeOf(time: string): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  const two = (value: number, digits = 2) => String(value).padStart(digits, "0");
  const seconds = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${seconds}.${two(date.getMilliseconds(), 3)}`;
}
