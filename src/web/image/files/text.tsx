import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Link, navigate } from "../../browser/router.ts";
import { useLoaded } from "../../data/resource.ts";
import { createStore, useStore } from "../../data/store.ts";
import { Checkbox } from "../../parts/field.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { bytesText, countText } from "../../text/format.ts";
import { ask } from "../../worker/client.ts";
import { LINE_CHARACTERS_MAX, type TextEncoding, type TextReply, type Tokens } from "../../worker/messages.ts";
import { lineEnd, lineOf } from "../../worker/text-lines.ts";
import { type ImageLink, linkWith, numberIn } from "../link.ts";
import { shownName } from "../paths.ts";
import { usePixels } from "../use-pixels.ts";
import { type FilePart, TEXT_BYTES_MAX } from "./content.ts";
import { useFocusTaken } from "./focus.ts";
import { languageOf } from "./language.ts";
import { LINE_REM, longestLine, rowAt, shownEnd, type TextRows, textRows, tokenSpans } from "./text-rows.ts";
import { TokenText } from "./token-text.tsx";
import { Measure, useColumns } from "./use-columns.tsx";

/** Longest time of the worker's jobs, in `milliseconds`: highlighting some texts would take hours. */
const TEXT_MS = 10_000;
const HIGHLIGHT_MS = 5000;
/** Longest text that is highlighted, in `characters`. */
const HIGHLIGHT_CHARACTERS_MAX = 524_288;

/** Space around line numbers, in characters. */
const BESIDE_CHARACTERS = 4;

const WRAP = "coppice.wrap";
const isWrapped = createStore(localStorage.getItem(WRAP) === "yes");

function setWrapped(isOn: boolean): void {
  localStorage.setItem(WRAP, isOn ? "yes" : "no");
  isWrapped.set(isOn);
}

interface TextViewProps {
  readonly link: ImageLink;
  readonly part: FilePart;
  /** position of the part in the file, in `bytes` */
  readonly start: number;
}

/** A part of a text, as lines. */
export function TextView({ link, part, start }: TextViewProps) {
  const { fields } = link;
  const encoding = encodingIn(fields.get("encoding"));
  const { value, problem } = useLoaded<TextReply>(`${start} ${encoding}`, (signal) => {
    const isLast = start + part.bytes.byteLength >= part.size;
    const request = { bytes: part.bytes.slice().buffer, encoding: start === 0 ? null : encoding, isLast };
    return ask("text", request, { signal, deadlineMs: TEXT_MS, transfer: [request.bytes] });
  });
  if (problem !== undefined) return <ProblemNote problem={problem} title="This text cannot be read" />;
  if (value === undefined) return <Skeleton lines={10} label="Reading the text" />;
  return <Lines link={link} lines={value} start={start} size={part.size} />;
}

function encodingIn(text: string | null): TextEncoding {
  return text === "utf-16le" || text === "utf-16be" ? text : "utf-8";
}

interface LinesProps {
  readonly link: ImageLink;
  readonly lines: TextReply;
  readonly start: number;
  readonly size: number;
}

function Lines({ link, lines, start, size }: LinesProps) {
  const { fields } = link;
  const targetLine = numberIn(fields, "line", 1);
  // The link has the number of the first line of this part, if it is known.
  const first = start === 0 ? 1 : numberIn(fields, "first", 1);
  const base = first ?? 1;
  const language = useMemo(() => languageOf(shownName(link.path), lineOf(lines, 0).slice(0, 256)), [lines]);
  const tokens = useTokens(lines, language);
  const wrapped = useStore(isWrapped);
  const lineCount = lines.starts.length - 1;
  const digits = String(base + lineCount).length;
  const place = useRef<HTMLDivElement>(null);
  const rowHeight = usePixels(LINE_REM);
  useFocusTaken(place);
  const columns = useColumns(place, digits + BESIDE_CHARACTERS);
  const rows = useMemo(() => textRows(lines, wrapped && columns > 0 ? columns : null), [lines, wrapped, columns]);
  const longest = useMemo(() => longestLine(lines), [lines]);
  const target = targetLine === null ? -1 : targetLine - base;
  // Rows depend on the width of the window, so the active one is stored by the position of a character.
  const [chosen, setChosen] = useState(0);
  useLayoutEffect(() => {
    if (target >= 0 && target < lineCount) setChosen(lines.starts[target] ?? 0);
  }, [target, lines]);
  const linkToLine = (line: number): string =>
    linkWith(link, { line: base + line, at: start === 0 ? null : start, first: start === 0 ? null : first });
  return (
    <div
      ref={place}
      class={
        wrapped
          ? "image-text-wrapped image-text relative stack fill gap-2 shrink"
          : "image-text relative stack fill gap-2 shrink"
      }
      style={{ "--image-columns": longest, "--digits": digits }}
    >
      <TextFacts lines={lines} language={language} tokens={tokens} />
      <VirtualRows
        label="Lines"
        class="image-lines"
        count={rows.lines.length}
        rowHeight={rowHeight}
        active={rowAt(rows, chosen)}
        onActive={(row) => setChosen(rows.starts[row] ?? 0)}
        onOpen={(row) => navigate(linkToLine(rows.lines[row] ?? 0), { replace: true })}
        rowClass={(row) => (rows.lines[row] === target ? "image-line-target" : undefined)}
        cells={(row) => lineCells({ lines, tokens, rows, row, base: first, linkToLine })}
      />
      <Measure />
      <PartLinks link={link} lines={lines} start={start} size={size} first={first} />
    </div>
  );
}

/** The highlighting of a text; null if there is none yet. */
function useTokens(lines: TextReply, language: string | null): Tokens | null {
  const { text, starts } = lines;
  const isWanted = language !== null && text.length <= HIGHLIGHT_CHARACTERS_MAX;
  const { value } = useLoaded<Tokens>(isWanted ? language : null, (signal) =>
    // The worker gets copies, because the page shows the lines at the same time.
    ask("highlight", { text, starts, language: language ?? "" }, { signal, deadlineMs: HIGHLIGHT_MS }),
  );
  return value ?? null;
}

function TextFacts(props: {
  readonly lines: TextReply;
  readonly language: string | null;
  readonly tokens: Tokens | null;
}) {
  const { lines, language, tokens } = props;
  const wrapped = useStore(isWrapped);
  const count = lines.starts.length - 1;
  const facts = [
    `${countText(count)} ${count === 1 ? "line" : "lines"}`,
    lines.encoding.toUpperCase(),
    ...(lines.crlfCount > 0 ? [lines.crlfCount >= count - 1 ? "CRLF" : "CRLF in places"] : []),
    ...(tokens === null || language === null ? [] : [language]),
  ];
  return (
    <div class="row wrap between gap-1-4 small tabular">
      <p class="muted">
        {facts.join(" · ")}
        {lines.replacedCount === 0 ? null : (
          <>
            {" · "}
            <span class="warning">
              <span class="escape">�</span> stands for {countText(lines.replacedCount)}{" "}
              {lines.replacedCount === 1 ? "byte" : "bytes"} that are not {lines.encoding.toUpperCase()}
            </span>
          </>
        )}
      </p>
      <Checkbox label="Wrap lines" isChecked={wrapped} onChecked={setWrapped} />
    </div>
  );
}

interface LineCell {
  readonly lines: TextReply;
  readonly tokens: Tokens | null;
  readonly rows: TextRows;
  readonly row: number;
  /** number of the first line; null: unknown */
  readonly base: number | null;
  readonly linkToLine: (line: number) => string;
}

function lineCells({ lines, tokens, rows, row, base, linkToLine }: LineCell) {
  const line = rows.lines[row] ?? 0;
  const isFirst = row === 0 || rows.lines[row - 1] !== line;
  const isLast = rows.lines[row + 1] !== line;
  const end = shownEnd(lines, line);
  const start = rows.starts[row] ?? 0;
  const hidden = lineEnd(lines.text, lines.starts, line) - end;
  return [
    isFirst && base !== null ? (
      <Link
        key="number"
        class="image-number block fixed faint small tabular"
        href={linkToLine(line)}
        replace
        tabIndex={-1}
      >
        {base + line}
      </Link>
    ) : (
      ""
    ),
    <code key="line" class="image-code small">
      <TokenText pieces={tokenSpans(lines.text, tokens, line, start, isLast ? end : (rows.starts[row + 1] ?? end))} />
      {isLast && hidden > 0 ? (
        <span class="escape">
          {" "}
          … {countText(hidden)} more characters; the line is cut at {countText(LINE_CHARACTERS_MAX)}
        </span>
      ) : null}
    </code>,
  ];
}

interface PartLinksProps extends LinesProps {
  /** number of the first line; null: unknown */
  readonly first: number | null;
}

/** Links to the other parts of a large text. */
function PartLinks({ link, lines, start, size, first }: PartLinksProps) {
  const end = start + lines.usedBytes;
  if (start === 0 && end >= size) return null;
  const nextFirst = first === null ? null : first + lines.starts.length - 1 - (lines.isCut ? 1 : 0);
  const next = { at: end, first: nextFirst, line: null, encoding: lines.encoding === "utf-8" ? null : lines.encoding };
  const before = Math.max(0, start - TEXT_BYTES_MAX);
  return (
    <nav class="image-parts flex wrap gap-1-4 small" aria-label="Parts of the file">
      <span class="muted number">
        {bytesText(start)} to {bytesText(end)} of {bytesText(size)}
      </span>
      {start === 0 ? null : (
        <Link href={linkWith(link, { at: null, first: null, line: null })}>From the beginning</Link>
      )}
      {start === 0 ? null : (
        <Link href={linkWith(link, { at: before === 0 ? null : before, first: null, line: null })}>Previous part</Link>
      )}
      {end >= size ? null : <Link href={linkWith(link, next)}>Next part</Link>}
    </nav>
  );
}
