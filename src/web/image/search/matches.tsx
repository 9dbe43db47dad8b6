import { useMemo, useState } from "preact/hooks";
import type { GrepMatch } from "../../../client/types.ts";
import { Link, navigate } from "../../browser/router.ts";
import { useLoaded } from "../../data/resource.ts";
import { Button } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { bytesText, countOf, countText } from "../../text/format.ts";
import { TEXT_BYTES_MAX } from "../files/content.ts";
import { TokenText } from "../files/token-text.tsx";
import { type ImageLink, linkTo } from "../link.ts";
import { type EncodedPath, pathFrom, shownPath } from "../paths.ts";
import { useRowPixels } from "../use-pixels.ts";
import { markedLine } from "./marked-line.ts";
import { MATCHES_MAX, type SearchState, searchText } from "./search-run.ts";
import type { TextSearch } from "./search-steps.ts";

/** The matching lines, live during the search. */
export function Matches({ link, pattern }: { readonly link: ImageLink; readonly pattern: string }) {
  const { image, path, fields } = link;
  const rowHeight = useRowPixels();
  const [isStopped, setStopped] = useState(false);
  const [last, setLast] = useState<SearchState>();
  const glob = fields.get("files") ?? "";
  const search: TextSearch = { image, path, pattern, glob, isCaseSensitive: fields.get("case") === "1" };
  const key = isStopped ? null : JSON.stringify(search);
  const { value, problem, isLoading, reload } = useLoaded<SearchState>(key, (signal, tell) =>
    searchText(search, signal, (state) => {
      setLast(state);
      tell(state);
    }),
  );
  // Results stay if the search is stopped, or if a part of it fails.
  const state = value ?? last;
  const rows = useMemo(() => rowsOf(state?.matches ?? []), [state?.matches]);
  const open = (index: number) => {
    const match = rows[index]?.match;
    if (match !== undefined) navigate(lineLink(image, match));
  };
  return (
    <>
      {problem === undefined ? null : <ProblemNote problem={problem} title="The search failed" onRetry={reload} />}
      <div class="image-progress row wrap gap-2-4 small tabular">
        <p class="muted" role="status">
          {stateText(state, isStopped)}
        </p>
        {isLoading && state !== undefined ? (
          <progress value={state.done} max={state.all} aria-label="Searched parts of the directory" />
        ) : null}
        {isLoading ? (
          <Button isSmall icon="stop" onClick={() => setStopped(true)}>
            Stop
          </Button>
        ) : null}
      </div>
      {!isLoading && !isStopped && problem === undefined && rows.length === 0 ? (
        <Empty title="No matching lines" />
      ) : null}
      {rows.length === 0 ? null : (
        <VirtualRows
          label="Matching lines"
          rowHeight={rowHeight}
          class="image-matches"
          count={rows.length}
          onOpen={open}
          rowClass={(index) => (rows[index]?.isFirst === true ? "image-match-first" : undefined)}
          cells={(index) => matchCells(image, rows[index])}
        />
      )}
    </>
  );
}

interface MatchRow {
  readonly match: GrepMatch;
  readonly path: EncodedPath;
  /** true: the first one of its file */
  readonly isFirst: boolean;
}

function rowsOf(matches: readonly GrepMatch[]): MatchRow[] {
  let before: EncodedPath | null = null;
  return matches.map((match) => {
    const path = pathFrom(match);
    const row = { match, path, isFirst: path !== before };
    before = path;
    return row;
  });
}

/** A link to a line. Beyond the first part of a file, it also has the position of the line. */
function lineLink(image: string, match: GrepMatch): string {
  const { line, offset = 0, length = 0 } = match;
  const place = offset + length > TEXT_BYTES_MAX ? { at: offset, first: line } : {};
  return linkTo(image, "files", pathFrom(match), { line, ...place });
}

function matchCells(image: string, row: MatchRow | undefined) {
  if (row === undefined) return [];
  const { match, path, isFirst } = row;
  const { pieces, isCutBefore, isCutAfter } = markedLine(match);
  return [
    <span key="path" class={isFirst ? "image-match-path" : "image-match-path image-match-again"}>
      <GuestText text={shownPath(path)} hasTitle />
    </span>,
    <Link key="line" class="image-number block fixed faint small tabular" href={lineLink(image, match)} tabIndex={-1}>
      {match.line}
    </Link>,
    <code key="text" class="image-code small">
      {isCutBefore ? <span class="escape">… </span> : null}
      {pieces.map(({ text, isMatch }, index) => {
        const content = <TokenText key={index} pieces={[{ text, kind: 0 }]} />;
        return isMatch ? <mark key={index}>{content}</mark> : content;
      })}
      {isCutAfter ? <span class="escape"> …</span> : null}
    </code>,
  ];
}

const BOUNDS: Readonly<Record<string, string>> = {
  limit: `at most ${countText(MATCHES_MAX)} lines are shown`,
  bytes: "a part was too large to be read to its end",
  entries: "a part has too many files to be read to its end",
  time: "a part took too long to be read to its end",
  line_length: "a line was too long to be read to its end",
};

function stateText(state: SearchState | undefined, isStopped: boolean): string {
  if (state === undefined) return isStopped ? "Stopped" : "Searching…";
  const { matches, filesSearched, bytesSearched, bounds } = state;
  const why = bounds.map((bound) => BOUNDS[bound] ?? bound).join("; ");
  const parts = [
    countOf(matches.length, "line"),
    `${countOf(filesSearched, "file")} and ${bytesText(bytesSearched)} read`,
    isStopped ? "stopped" : why === "" ? "" : `there may be more: ${why}`,
  ];
  return parts.filter((part) => part !== "").join(" · ");
}
