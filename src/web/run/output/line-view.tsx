import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { OutputLine } from "./output-buffer.ts";
import { Row } from "./rows.tsx";

export interface LineViewProps {
  readonly lines: readonly OutputLine[];
  readonly hasTimes: boolean;
  readonly hasStreams: boolean;
  readonly words: string;
  /** number of the line to scroll to */
  readonly current: number | undefined;
  /** true: the view follows the end */
  readonly isFollowing: boolean;
  /** called when the user scrolls away from the end */
  readonly onFollow: (isFollowing: boolean) => void;
}

/** Rows rendered above and below the visible ones. */
const AROUND_COUNT = 12;
/** Distance from the end that counts as the end, in `CSS pixels`. */
const END_PIXELS = 8;

/** Lines of equal height, of which only the visible ones are rendered. Keys scroll them like any text. */
export function LineView(props: LineViewProps) {
  const { lines, hasTimes, hasStreams, words, current, isFollowing, onFollow } = props;
  const view = useRef<HTMLDivElement>(null);
  const probe = useRef<HTMLDivElement>(null);
  const { height, rowHeight } = useHeights(view, probe);
  const [top, setTop] = useState(0);
  /** position to which this component scrolled; any other one is from the user */
  const set = useRef(-1);

  const scrollTo = (next: number) => {
    const element = view.current;
    if (element === null) return;
    element.scrollTop = next;
    set.current = element.scrollTop;
    setTop(element.scrollTop);
  };
  useLayoutEffect(() => {
    if (isFollowing) scrollTo(lines.length * rowHeight);
  }, [isFollowing, lines, rowHeight, height]);
  useLayoutEffect(() => {
    const index = current === undefined ? -1 : lines.findIndex(({ number }) => number === current);
    const isVisible = index * rowHeight >= top && (index + 1) * rowHeight <= top + height;
    if (index >= 0 && !isFollowing && !isVisible) scrollTo(Math.max(0, index * rowHeight - height / 2));
  }, [current, isFollowing]);

  const onScroll = () => {
    const element = view.current;
    if (element === null) return;
    const isAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - END_PIXELS;
    const isOwn = Math.abs(element.scrollTop - set.current) < 2;
    setTop(element.scrollTop);
    if (isOwn) return;
    set.current = -1;
    if (isFollowing && !isAtEnd) onFollow(false);
  };
  const first = Math.max(0, Math.floor(top / rowHeight) - AROUND_COUNT);
  const end = Math.min(lines.length, Math.ceil((top + height) / rowHeight) + AROUND_COUNT);
  return (
    <div
      ref={view}
      class="run-lines relative inset fixed small"
      role="log"
      aria-live="off"
      aria-label="Lines of output"
      tabIndex={0}
      onScroll={onScroll}
    >
      <div ref={probe} class="run-line flex gap-3 run-line-probe" aria-hidden="true" />
      <div class="run-lines-space relative" style={{ height: `${lines.length * rowHeight}px` }}>
        {lines.slice(first, end).map((line, index) => (
          <Row
            key={line.number}
            line={line}
            hasTime={hasTimes}
            hasStream={hasStreams}
            words={words}
            isCurrent={line.number === current}
            top={(first + index) * rowHeight}
          />
        ))}
      </div>
    </div>
  );
}

/** Heights of the view and of a line, in `CSS pixels`. They change with the window and the text size. */
function useHeights(view: RefObject<HTMLElement | null>, probe: RefObject<HTMLElement | null>) {
  const [rowHeight, setRowHeight] = useState(20);
  const [height, setHeight] = useState(400);
  useLayoutEffect(() => {
    const element = view.current;
    if (element === null) return;
    const measure = () => {
      setHeight(element.clientHeight);
      setRowHeight(probe.current?.getBoundingClientRect().height || 20);
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    if (probe.current !== null) observer.observe(probe.current);
    return () => observer.disconnect();
  }, []);
  return { height, rowHeight };
}
