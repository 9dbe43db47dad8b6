import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { classes } from "../classes.ts";
import { type Extent, elementHeight, offsetFor, rowsAt, type Scroll, scrolled, scrollTo } from "./virtual-scroll.ts";

export interface VirtualColumn {
  readonly id: string;
  readonly label: string;
  readonly isFigure?: boolean;
}

export interface VirtualRowsProps {
  /** what is listed, for screen readers */
  readonly label: string;
  readonly count: number;
  /** of each row, in `CSS pixels`; 32 where absent */
  readonly rowHeight?: number;
  /** the view's own name: its style sheet gives `.NAME .virtual-row` the `grid-template-columns` */
  readonly class?: string;
  /** a head, which stays while rows are scrolled */
  readonly columns?: readonly VirtualColumn[];
  /** the cells of a row, in the order of the columns; links and buttons in them have `tabIndex={-1}` */
  readonly cells: (index: number) => readonly ComponentChildren[];
  readonly rowKey?: (index: number) => string | number;
  readonly rowClass?: (index: number) => string | undefined;
  /** the active row; absent: the component stores it */
  readonly active?: number;
  readonly onActive?: (index: number) => void;
  /** Enter, or a click on the row outside of its links and buttons */
  readonly onOpen?: (index: number) => void;
  /** keys that the rows do not use; `index` is the active row */
  readonly onKey?: (event: KeyboardEvent, index: number) => void;
  /** the rendered rows, for callers that load rows in pages */
  readonly onRange?: (first: number, end: number) => void;
}

const ROW_PIXELS = 32;

/**
 * Rows of equal height, of which only the visible ones are rendered: 1,000,000 are as fast as 100. The list is one stop of
 * the Tab key; arrows, Page Up, Page Down, Home and End move the active row, Enter opens it.
 */
export function VirtualRows(props: VirtualRowsProps) {
  const { label, count, rowHeight = ROW_PIXELS, columns, cells, rowKey, rowClass, onOpen, onRange } = props;
  const id = useId();
  const view = useRef<HTMLDivElement>(null);
  const { extent, offset, shift, show } = useVirtualScroll(view, count, rowHeight);
  const [own, setOwn] = useState(0);
  const active = Math.min(props.active ?? own, Math.max(0, count - 1));
  const { first, end } = rowsAt(offset, extent);
  useEffect(() => onRange?.(first, end), [first, end, count]);
  const activate = (index: number) => {
    setOwn(index);
    props.onActive?.(index);
    show(index);
  };
  // A row that became active from outside is scrolled into view.
  useEffect(() => {
    if (props.active !== undefined && props.active >= 0 && extent.viewHeight > 0) show(props.active, true);
  }, [props.active, extent.viewHeight > 0]);
  const headRows = columns === undefined ? 0 : 1;
  const indexes = Array.from({ length: Math.max(0, end - first) }, (_, at) => first + at);
  return (
    <div
      ref={view}
      class={classes("virtual fill relative", props.class)}
      role="grid"
      aria-label={label}
      aria-rowcount={count + headRows}
      aria-colcount={columns?.length}
      aria-activedescendant={active >= first && active < end && count > 0 ? `${id}-${active}` : undefined}
      tabIndex={0}
      onKeyDown={(event) => onKeyDown(event, active, extent, activate, props)}
    >
      {columns === undefined ? null : <Head columns={columns} />}
      <div class="virtual-space relative" role="presentation" style={{ height: `${elementHeight(extent)}px` }}>
        <div class="virtual-rows" role="rowgroup" style={{ top: `${first * rowHeight + shift}px` }}>
          {indexes.map((index) => (
            <div
              key={rowKey?.(index) ?? index}
              id={`${id}-${index}`}
              class={classes("virtual-row gap-4", index === active && "virtual-row-active", rowClass?.(index))}
              role="row"
              aria-rowindex={index + 1 + headRows}
              aria-selected={index === active}
              style={{ height: `${rowHeight}px` }}
              onClick={(event) => {
                activate(index);
                if (isBesideControls(event)) onOpen?.(index);
              }}
            >
              {cells(index).map((cell, at) => (
                <div key={at} class={classes("cell", columns?.[at]?.isFigure && "cell-figure")} role="gridcell">
                  {cell}
                </div>
              ))}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

function Head({ columns }: { readonly columns: readonly VirtualColumn[] }) {
  return (
    <div class="virtual-head medium muted small" role="rowgroup">
      <div class="virtual-row gap-4" role="row" aria-rowindex={1}>
        {columns.map(({ id, label, isFigure }) => (
          <div key={id} class={classes("cell", isFigure && "cell-figure")} role="columnheader">
            {label}
          </div>
        ))}
      </div>
    </div>
  );
}

/** A click on the row itself: not on a link or a button in it, and not the end of a text selection. */
function isBesideControls(event: MouseEvent): boolean {
  const target = event.target as Element;
  return target.closest("a, button, input, select, label") === null && getSelection()?.isCollapsed !== false;
}

function onKeyDown(
  event: KeyboardEvent,
  active: number,
  { rowCount, rowHeight, viewHeight }: Extent,
  activate: (index: number) => void,
  { onOpen, onKey }: Pick<VirtualRowsProps, "onOpen" | "onKey">,
): void {
  const page = Math.max(1, Math.floor(viewHeight / rowHeight) - 1);
  const steps: Record<string, number> = {
    ArrowDown: active + 1,
    ArrowUp: active - 1,
    PageDown: active + page,
    PageUp: active - page,
    Home: 0,
    End: rowCount - 1,
  };
  const step = event.altKey || event.ctrlKey || event.metaKey ? undefined : steps[event.key];
  if (step !== undefined && rowCount > 0) activate(Math.min(rowCount - 1, Math.max(0, step)));
  else if (event.key === "Enter" && event.target === event.currentTarget && rowCount > 0 && onOpen !== undefined) {
    onOpen(active);
  } else {
    onKey?.(event, active);
    return;
  }
  event.preventDefault();
}

interface VirtualScroll {
  readonly extent: Extent;
  readonly offset: number;
  /** offset of the rows from their position without a limit on the height of elements */
  readonly shift: number;
  /** Scrolls a row into view: by the shortest distance, or to the middle if it is not visible. */
  show(row: number, isCentred?: boolean): void;
}

function useVirtualScroll(view: RefObject<HTMLDivElement | null>, rowCount: number, rowHeight: number): VirtualScroll {
  const [viewHeight, setViewHeight] = useState(0);
  const [scroll, setScroll] = useState<Scroll>({ top: 0, offset: 0 });
  const latest = useRef(scroll);
  const extent: Extent = { rowCount, rowHeight, viewHeight };
  const now = useRef(extent);
  now.current = extent;
  const apply = (next: Scroll) => {
    latest.current = next;
    const element = view.current;
    if (element !== null && element.scrollTop !== next.top) element.scrollTop = next.top;
    setScroll(next);
  };
  useLayoutEffect(() => {
    const element = view.current;
    if (element === null) return;
    // The head covers the first rows.
    const measure = () => {
      const head = element.querySelector<HTMLElement>(".virtual-head");
      setViewHeight(Math.max(0, element.clientHeight - (head?.offsetHeight ?? 0)));
    };
    const onScroll = () => {
      if (element.scrollTop !== latest.current.top) apply(scrolled(latest.current, element.scrollTop, now.current));
    };
    // The scroll bar moves to its exact position when scrolling ends.
    const onRest = () => {
      const next = scrollTo(latest.current.offset, now.current);
      if (elementHeight(now.current) < now.current.rowCount * now.current.rowHeight) apply(next);
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", onScroll, { passive: true });
    element.addEventListener("scrollend", onRest);
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", onScroll);
      element.removeEventListener("scrollend", onRest);
    };
  }, []);
  const show = (row: number, isCentred = false) => {
    const offset = offsetFor(row, latest.current.offset, now.current, isCentred);
    if (offset !== latest.current.offset) apply(scrollTo(offset, now.current));
  };
  const offsetMax = Math.max(0, rowCount * rowHeight - viewHeight);
  const offset = Math.min(scroll.offset, offsetMax);
  return { extent, offset, shift: scroll.top - scroll.offset, show };
}
