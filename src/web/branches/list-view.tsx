import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { classes } from "../parts/classes.ts";
import { Content, countShown, FoldMark, Unseen, versionOf } from "./card.tsx";
import type { Item } from "./model/folds.ts";
import { type FormProps, idOf, stateClasses, treeItem } from "./tree/tree-view.tsx";

/** Rows rendered above and below the visible ones. */
const AROUND = 12;
/** Largest depth that is indented. */
const INDENT_MAX = 12;

/** The drawing as a list: for narrow screens, for screen readers, and for people who like lists. */
export function ListView(props: FormProps) {
  const { drawing, activeKey } = props;
  const { items, byKey } = drawing.layout;
  const scroller = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ first: 0, last: 40, row: 40, height: 0 });
  useLayoutEffect(() => watch(scroller, setSeen), []);
  const active = activeKey === null ? undefined : byKey.get(activeKey);
  useActive(scroller, items, active, seen);
  useTargetRow(scroller, props, seen.row);
  const first = Math.max(0, seen.first - AROUND);
  const last = Math.min(items.length, seen.last + AROUND);
  const rows = items.slice(first, last).map((item, index) => ({ item, at: first + index }));
  const isActiveOut = active !== undefined && !rows.some(({ item }) => item === active);
  if (isActiveOut) rows.push({ item: active, at: items.indexOf(active) });
  return (
    <div
      ref={scroller}
      class="branches-list fill shrink"
      role="tree"
      aria-label="Branches"
      tabIndex={0}
      aria-activedescendant={active === undefined ? undefined : idOf(active)}
      onKeyDown={props.onKeyDown}
      onClick={(event) => click(event, props)}
      onDblClick={(event) => withItem(event, props, props.onOpen)}
      onContextMenu={(event) =>
        withItem(event, props, (item) => {
          event.preventDefault();
          props.onMenu(item, new DOMRect(event.clientX, event.clientY, 0, 0));
        })
      }
    >
      <div class="relative" role="presentation" style={{ height: `${items.length * seen.row}px` }}>
        {rows.map(({ item, at }) => (
          <Row key={item.key} item={item} at={at} height={seen.row} props={props} />
        ))}
      </div>
    </div>
  );
}

interface Seen {
  readonly first: number;
  readonly last: number;
  /** height of a row, in `px` */
  readonly row: number;
  /** of the list, in `px` */
  readonly height: number;
}

/** The visible rows, updated as the list scrolls and changes its size. */
function watch(scroller: RefObject<HTMLElement | null>, setSeen: (seen: Seen) => void): (() => void) | undefined {
  const element = scroller.current;
  if (element === null) return;
  const read = () => {
    const row = Number.parseFloat(getComputedStyle(element).getPropertyValue("line-height")) * 2 || 56;
    const first = Math.floor(element.scrollTop / row);
    const height = element.clientHeight;
    setSeen({ first, last: first + Math.ceil(height / row) + 1, row, height });
  };
  read();
  element.addEventListener("scroll", read, { passive: true });
  const observer = new ResizeObserver(read);
  observer.observe(element);
  return () => {
    element.removeEventListener("scroll", read);
    observer.disconnect();
  };
}

/** Keeps the row that has the focus in view. */
function useActive(
  scroller: RefObject<HTMLElement | null>,
  items: readonly Item[],
  active: Item | undefined,
  { row, height }: Seen,
): void {
  const key = active?.key;
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element === null || active === undefined) return;
    const top = items.indexOf(active) * row;
    if (top < element.scrollTop) element.scrollTop = top;
    const below = top + row - element.clientHeight;
    if (below > element.scrollTop) element.scrollTop = below;
  }, [key, height]);
}

/** Scrolls the requested item to the middle, as soon as it is drawn. */
function useTargetRow(scroller: RefObject<HTMLElement | null>, { target, drawing }: FormProps, row: number): void {
  const done = useRef<object | null>(null);
  useLayoutEffect(() => {
    const item = target === null ? undefined : drawing.layout.byKey.get(target.key);
    const element = scroller.current;
    if (target === null || item === undefined || element === null || done.current === target) return;
    done.current = target;
    element.scrollTop = drawing.layout.items.indexOf(item) * row - element.clientHeight / 2;
  }, [target, drawing, row]);
}

function itemOf(event: Event, { drawing }: FormProps): Item | undefined {
  const key = (event.target as Element).closest<HTMLElement>("[data-key]")?.dataset["key"];
  return key === undefined ? undefined : drawing.layout.byKey.get(key);
}

function withItem(event: Event, props: FormProps, act: (item: Item) => void): void {
  const item = itemOf(event, props);
  if (item !== undefined) act(item);
}

function click(event: MouseEvent, props: FormProps): void {
  const isOnFold = (event.target as Element).closest("[data-act=toggle]") !== null;
  withItem(event, props, (item) => (isOnFold ? props.onToggle(item) : props.onPick(item)));
}

interface RowProps {
  readonly item: Item;
  readonly at: number;
  readonly height: number;
  readonly props: FormProps;
}

function Row({ item, at, height, props }: RowProps) {
  const style = {
    transform: `translateY(${at * height}px)`,
    height: `${height}px`,
    "--indent": String(Math.min(item.indent, INDENT_MAX)),
  };
  return (
    <div {...treeItem(item, props)} class={classes("branches-row", ...stateClasses(item, props))} style={style}>
      <Content item={item} search={props.drawing.search} version={versionOf(item)} />
      <Unseen item={item} />
      <FoldMark item={item} />
      <span class="branches-row-count muted small number" aria-hidden="true">
        {countShown(item)}
      </span>
    </div>
  );
}
