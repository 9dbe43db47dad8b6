import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { navigate } from "../../browser/router.ts";
import { type Problem, problemOf } from "../../data/problem.ts";
import { Button } from "../../parts/button.tsx";
import { Field } from "../../parts/field.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { type ImageLink, linkWith, numberIn } from "../link.ts";
import { usePixels } from "../use-pixels.ts";
import { readPart } from "./content.ts";
import { useFocusTaken } from "./focus.ts";
import { hexRow, offsetText, Parts, parseOffset } from "./hex-rows.ts";

/** Size of a part, in `bytes`, and number of parts that are cached: 4 MiB in all. */
const PART_BYTES = 65_536;
const PARTS_MAX = 64;
/** Bytes per row: fewer in a narrow view. */
const WIDE_BYTES = 16;
const NARROW_BYTES = 8;
const NARROW = "(max-width: 719px)";

/** The bytes of a file of any size. Only visible parts are read. */
export function HexView({ link, size }: { readonly link: ImageLink; readonly size: number }) {
  const perRow = useRowBytes();
  const rowHeight = usePixels(1.375);
  const place = useRef<HTMLDivElement>(null);
  useFocusTaken(place);
  const { parts, problem, request, retry } = useParts(link, size);
  const at = Math.min(numberIn(link.fields, "at", 0) ?? 0, size - 1);
  // The length of rows depends on the window, so the active row is stored by the offset of a byte.
  const [chosen, setChosen] = useState(at);
  useLayoutEffect(() => setChosen(at), [at]);
  const active = Math.floor(chosen / perRow);
  const offset = active * perRow;
  return (
    <div ref={place} class="image-hex-view relative stack fill gap-2 shrink">
      <GoTo link={link} size={size} offset={offset} />
      {problem === undefined ? null : (
        <ProblemNote problem={problem} title="These bytes cannot be read" onRetry={retry} />
      )}
      <VirtualRows
        label="Bytes"
        class={`image-hex image-hex-${perRow}`}
        count={Math.ceil(size / perRow)}
        rowHeight={rowHeight}
        active={active}
        onActive={(row) => setChosen(row * perRow)}
        onRange={(first, end) => request(first * perRow, end * perRow)}
        cells={(row) => hexCells(parts, row * perRow, Math.min(perRow, size - row * perRow), size)}
      />
    </div>
  );
}

function hexCells(parts: Parts, offset: number, count: number, size: number) {
  const part = parts.get(Math.floor(offset / PART_BYTES));
  const begin = offset % PART_BYTES;
  const bytes = part?.subarray(begin, begin + count);
  const row = bytes === undefined ? null : hexRow(bytes);
  const half = row === null ? 0 : Math.min(8, row.hex.length);
  return [
    <code key="offset" class="image-offset small muted">
      {offsetText(offset, size)}
    </code>,
    row === null ? (
      <span key="bytes" class="image-waiting block" />
    ) : (
      <code key="bytes" class="image-bytes small flex">
        <span>{row.hex.slice(0, half).join(" ")}</span>
        {row.hex.length > half ? <span>{row.hex.slice(half).join(" ")}</span> : null}
      </code>
    ),
    <code key="text" class="image-characters small muted">
      {row?.characters ?? ""}
    </code>,
  ];
}

function useRowBytes(): number {
  const [isNarrow, setNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const changed = () => setNarrow(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return isNarrow ? NARROW_BYTES : WIDE_BYTES;
}

interface ReadParts {
  readonly parts: Parts;
  readonly problem: Problem | undefined;
  /** Sets the visible range. */
  request(first: number, end: number): void;
  retry(): void;
}

/** Reads the visible parts, and aborts requests for parts that are no longer visible. */
function useParts({ image, path }: ImageLink, size: number): ReadParts {
  const [parts] = useState(() => new Parts(PARTS_MAX));
  const [problem, setProblem] = useState<Problem>();
  const [, redraw] = useState(0);
  const running = useRef(new Map<number, AbortController>());
  const seen = useRef({ first: 0, end: 0 });
  useEffect(
    () => () => {
      for (const reading of running.current.values()) reading.abort();
    },
    [],
  );
  const read = async (index: number): Promise<void> => {
    const leaving = new AbortController();
    running.current.set(index, leaving);
    try {
      const range = { start: index * PART_BYTES, count: PART_BYTES };
      parts.set(index, (await readPart({ image, path }, range, leaving.signal)).bytes);
      setProblem(undefined);
    } catch (error) {
      if (!leaving.signal.aborted) setProblem(problemOf(error));
    }
    if (running.current.get(index) === leaving) running.current.delete(index);
    if (!leaving.signal.aborted) redraw((count) => count + 1);
  };
  const request = (first: number, end: number) => {
    seen.current = { first, end };
    const from = Math.floor(first / PART_BYTES);
    const to = Math.floor(Math.min(end, size) / PART_BYTES);
    for (const [index, reading] of running.current) {
      if (index >= from && index <= to) continue;
      reading.abort();
      running.current.delete(index);
    }
    for (let index = from; index <= to && index * PART_BYTES < size; index += 1) {
      if (parts.get(index) === undefined && !running.current.has(index)) void read(index);
    }
  };
  return { parts, problem, request, retry: () => request(seen.current.first, seen.current.end) };
}

function GoTo({ link, size, offset }: { readonly link: ImageLink; readonly size: number; readonly offset: number }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const go = (event: Event) => {
    event.preventDefault();
    const target = parseOffset(text);
    if (target === null || target >= size) {
      setProblem(target === null ? "Write an offset such as 4096 or 0x1000." : "The file ends before this offset.");
      return;
    }
    setProblem("");
    navigate(linkWith(link, { as: "hex", at: target, line: null, first: null }), { replace: true });
  };
  return (
    <form class="image-tools image-go flex wrap items-start gap-2" onSubmit={go}>
      <Field
        label="Offset"
        isLabelHidden
        placeholder="Offset, such as 0x1000"
        isMono
        value={text}
        onValue={setText}
        problem={problem}
      />
      <Button type="submit">Go</Button>
      <output class="muted number">
        0x{offset.toString(16)} · {offset.toLocaleString("en-US")}
      </output>
    </form>
  );
}
