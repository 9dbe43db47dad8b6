import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { useShortcut } from "../../browser/keys.ts";
import { type Problem, problemOf } from "../../data/problem.ts";
import { Button } from "../../parts/button.tsx";
import { Menu } from "../../parts/menu.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { useToast } from "../../parts/toast.tsx";
import { countOf, countText, shortId } from "../../text/format.ts";
import type { EventFeed } from "../event-feed-reader.ts";
import { eventsPerPage, type Page, pageBefore, saveAs, wholeStream } from "./earlier.ts";
import { linesWith } from "./find.ts";
import { LineView } from "./line-view.tsx";
import type { OutputLine } from "./output-buffer.ts";

export interface OutputProps {
  /** of the operation or the sandbox */
  readonly path: string;
  readonly spid: number;
  readonly feed: EventFeed;
  /** text for an empty output */
  readonly emptyText: string;
}

type Streams = "both" | "stdout" | "stderr";
const TIMES = "coppice.run.times";

/** The live output of a process: both streams, with a search, and older output on demand. */
export function Output({ path, spid, feed, emptyText }: OutputProps) {
  const [hasTimes, toggleTimes] = useTimes();
  const [streams, setStreams] = useState<Streams>("both");
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  /** the lines while the view does not follow the end; null: it follows */
  const [frozen, setFrozen] = useState<readonly OutputLine[] | null>(null);
  const earlier = useEarlier(path, spid, feed);

  const live = useMemo(() => feed.output.lines(), [feed.output, feed.version]);
  const visible = earlier.page?.lines ?? frozen ?? live;
  const lines = useMemo(() => linesOf(visible, streams), [visible, streams]);
  const matches = useMatches(lines, words);
  const current = matches[Math.min(at, matches.length - 1)];
  const isFollowing = frozen === null && earlier.page === null;
  const follow = (isOn: boolean) => {
    if (isOn) earlier.leave();
    setFrozen(isOn ? null : (frozen ?? live));
  };
  const step = (by: number) => {
    if (matches.length === 0) return;
    follow(false);
    setAt((at + by + matches.length) % matches.length);
  };
  const newCount = frozen === null ? 0 : feed.output.totalCount - ((frozen.at(-1)?.number ?? -1) + 1);
  return (
    <section class="run-output fill stack gap-3 shrink" aria-label="Output">
      <div class="row wrap between gap-2-4">
        <Search
          words={words}
          count={matches.length}
          at={Math.min(at, matches.length - 1)}
          onWords={(next) => {
            setWords(next);
            setAt(0);
          }}
          onStep={step}
        />
        <div class="row wrap gap-2">
          <StreamChoice streams={streams} onStreams={setStreams} />
          <Button isSmall aria-pressed={hasTimes} onClick={toggleTimes}>
            Times
          </Button>
          <FollowButton isOver={feed.isOver} isFollowing={isFollowing} newCount={newCount} onFollow={follow} />
          <Downloads path={path} spid={spid} />
        </div>
      </div>
      <EarlierNote earlier={earlier} liveCount={live.length} droppedCount={feed.output.droppedCount} />
      {lines.length === 0 ? (
        <p class="run-output-empty inset muted">
          {visible.length === 0 ? emptyText : `Nothing was written to ${streams}.`}
        </p>
      ) : (
        <LineView
          lines={lines}
          hasTimes={hasTimes}
          hasStreams={streams === "both" && feed.output.hasErrors}
          words={words}
          current={current}
          isFollowing={isFollowing}
          onFollow={follow}
        />
      )}
    </section>
  );
}

function linesOf(lines: readonly OutputLine[], streams: Streams): readonly OutputLine[] {
  return streams === "both" ? lines : lines.filter(({ stream }) => stream === streams || stream === "mark");
}

/** Whether lines show their times; the browser remembers it. */
function useTimes(): readonly [boolean, () => void] {
  const [hasTimes, setTimes] = useState(() => localStorage.getItem(TIMES) === "on");
  const toggle = () => {
    localStorage.setItem(TIMES, hasTimes ? "off" : "on");
    setTimes(!hasTimes);
  };
  return [hasTimes, toggle];
}

interface EarlierNoteProps {
  readonly earlier: ReturnType<typeof useEarlier>;
  readonly liveCount: number;
  readonly droppedCount: number;
}

/** A button for the output before the visible lines. */
function EarlierNote({ earlier, liveCount, droppedCount }: EarlierNoteProps) {
  return (
    <>
      {earlier.problem === undefined ? null : (
        <ProblemNote problem={earlier.problem} title="Earlier output could not be loaded" onRetry={earlier.load} />
      )}
      {earlier.hasMore ? (
        <p class="muted small">
          {earlier.page === null
            ? `The newest ${countText(liveCount)} lines are here; ${countText(droppedCount)} came before. `
            : "This is earlier output. "}
          <Button isSmall tone="quiet" isBusy={earlier.isLoading} onClick={earlier.load}>
            Load earlier output
          </Button>
        </p>
      ) : null}
    </>
  );
}

interface FollowButtonProps {
  /** true: the output has ended */
  readonly isOver: boolean;
  readonly isFollowing: boolean;
  /** number of new lines since the view stopped following */
  readonly newCount: number;
  readonly onFollow: (isFollowing: boolean) => void;
}

function FollowButton({ isOver, isFollowing, newCount, onFollow }: FollowButtonProps) {
  if (isOver && isFollowing) return null;
  const follow = isOver ? "To the end" : newCount > 0 ? `Follow, ${countOf(newCount, "new line")}` : "Follow";
  return (
    <Button isSmall onClick={() => onFollow(!isFollowing)}>
      {isFollowing ? "Pause" : follow}
    </Button>
  );
}

function StreamChoice({
  streams,
  onStreams,
}: {
  readonly streams: Streams;
  readonly onStreams: (streams: Streams) => void;
}) {
  const items = (["both", "stdout", "stderr"] as const).map((value) => ({
    label: STREAM_LABELS[value],
    isChecked: streams === value,
    onSelect: () => onStreams(value),
  }));
  return (
    <Menu label="Streams" isSmall items={items}>
      {STREAM_LABELS[streams]}
    </Menu>
  );
}

interface SearchProps {
  readonly words: string;
  /** line numbers of the matches */
  readonly count: number;
  /** index of the selected match */
  readonly at: number;
  readonly onWords: (words: string) => void;
  readonly onStep: (by: number) => void;
}

/** Enter selects the next match, Shift+Enter the previous one. */
function Search({ words, count, at, onWords, onStep }: SearchProps) {
  const place = useRef<HTMLInputElement>(null);
  useShortcut({ keys: "/", text: "Search in the output", group: "Run" }, () => place.current?.focus());
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") onWords("");
    if (event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    onStep(-1);
  };
  return (
    <form
      class="run-search row gap-2"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        onStep(1);
      }}
    >
      <input
        ref={place}
        class="input"
        type="search"
        aria-label="Search in the output"
        placeholder="Search"
        value={words}
        onInput={(event) => onWords(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <span class="run-search-count muted small tabular" role="status">
        {words === "" ? "" : count === 0 ? "none" : `${at + 1} of ${countText(count)}`}
      </span>
    </form>
  );
}

const STREAM_LABELS: Readonly<Record<Streams, string>> = {
  both: "Both streams",
  stdout: "Standard output",
  stderr: "Standard error",
};

/** Interval of searches through growing output, in `milliseconds`. */
const SEARCH_MS = 250;

/** The numbers of the lines that contain `words`; growing output is searched again at intervals. */
function useMatches(lines: readonly OutputLine[], words: string): readonly number[] {
  const [matches, setMatches] = useState<readonly number[]>([]);
  const latest = useRef(lines);
  latest.current = lines;
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  // Enter may be pressed right after.
  useLayoutEffect(() => setMatches(linesWith(latest.current, words)), [words]);
  useEffect(() => {
    if (words === "" || timer.current !== null) return;
    timer.current = setTimeout(() => {
      timer.current = null;
      setMatches(linesWith(latest.current, words));
    }, SEARCH_MS);
  }, [lines, words]);
  useEffect(() => () => clearTimeout(timer.current ?? undefined), []);
  return words === "" ? [] : matches;
}

interface Earlier {
  /** the page shown in place of the newest lines; null: none */
  readonly page: Page | null;
  /** whether there is output before the visible lines */
  readonly hasMore: boolean;
  readonly isLoading: boolean;
  readonly problem: Problem | undefined;
  load(): void;
  leave(): void;
}

/** Lines before the newest ones, page by page. */
function useEarlier(path: string, spid: number, feed: EventFeed): Earlier {
  const [page, setPage] = useState<Page | null>(null);
  const [problem, setProblem] = useState<Problem>();
  const [isLoading, setLoading] = useState(false);
  const leaving = useRef(new AbortController());
  useEffect(() => {
    leaving.current = new AbortController();
    setPage(null);
    setLoading(false);
    setProblem(undefined);
    return () => leaving.current.abort();
  }, [path, spid]);
  const load = async () => {
    const { signal } = leaving.current;
    const before = page?.lines ?? feed.output.lines();
    setLoading(true);
    setProblem(undefined);
    try {
      const older = await pageBefore({ path, spid, visible: before, count: eventsPerPage(feed.read) }, signal);
      if (!signal.aborted) setPage(older.lines.length === 0 && page !== null ? { ...page, isFirst: true } : older);
    } catch (error) {
      if (!signal.aborted) setProblem(problemOf(error));
    }
    if (!signal.aborted) setLoading(false);
  };
  return {
    page,
    problem,
    isLoading,
    hasMore: page === null ? feed.output.droppedCount > 0 : !page.isFirst,
    load: () => void load(),
    leave: () => setPage(null),
  };
}

function Downloads({ path, spid }: { readonly path: string; readonly spid: number }) {
  const toast = useToast();
  const download = async (stream: "stdout" | "stderr") => {
    try {
      saveAs(
        await wholeStream(path, spid, stream),
        `run-${shortId(path)}-${spid === 1 ? "" : `${spid}-`}${stream}.txt`,
      );
    } catch (error) {
      toast(`${STREAM_LABELS[stream]} could not be downloaded: ${problemOf(error).message}`, { isProblem: true });
    }
  };
  const items = (["stdout", "stderr"] as const).map((stream) => ({
    label: STREAM_LABELS[stream],
    icon: "download" as const,
    onSelect: () => void download(stream),
  }));
  return <Menu label="Download the output" icon="download" items={items} isSmall />;
}
