/** Positions of rows that are rendered only while they are visible. All lengths are in `CSS pixels`. */

/** Tallest element: browsers limit the height to 17,800,000 or more. */
export const ELEMENT_PIXELS_MAX = 8_000_000;
/** A scroll by fewer heights of the view than this moves the rows by the same distance, however many there are. */
const NEAR_VIEWS = 2;

export interface Extent {
  readonly rowCount: number;
  readonly rowHeight: number;
  /** of the view */
  readonly viewHeight: number;
}

/** Position of the view: `top` is that of the scrolled element, `offset` the distance from the first row. */
export interface Scroll {
  readonly top: number;
  readonly offset: number;
}

/** Height of the element that is scrolled. */
export function elementHeight({ rowCount, rowHeight }: Extent): number {
  return Math.min(rowCount * rowHeight, ELEMENT_PIXELS_MAX);
}

function limitsOf(extent: Extent): { readonly topMax: number; readonly offsetMax: number } {
  const { rowCount, rowHeight, viewHeight } = extent;
  return {
    topMax: Math.max(0, elementHeight(extent) - viewHeight),
    offsetMax: Math.max(0, rowCount * rowHeight - viewHeight),
  };
}

const within = (value: number, max: number): number => Math.min(Math.max(value, 0), max);

/** The scroll that shows `offset`, with the scroll bar at its exact position. */
export function scrollTo(offset: number, extent: Extent): Scroll {
  const { topMax, offsetMax } = limitsOf(extent);
  const visible = within(offset, offsetMax);
  return { top: offsetMax === 0 ? 0 : Math.round((visible / offsetMax) * topMax), offset: visible };
}

/**
 * The scroll after the element was scrolled to `top`. If the rows are taller than an element can be, short distances count
 * as they are, and long ones, by the scroll bar, in proportion.
 * @returns a `top` that differs from the argument if the element has to be scrolled there
 */
export function scrolled(before: Scroll, top: number, extent: Extent): Scroll {
  const { topMax, offsetMax } = limitsOf(extent);
  if (topMax === offsetMax) return { top, offset: within(top, offsetMax) };
  const way = top - before.top;
  if (Math.abs(way) > extent.viewHeight * NEAR_VIEWS)
    return { top, offset: within((top / topMax) * offsetMax, offsetMax) };
  const offset = within(before.offset + way, offsetMax);
  const isAtEnd = top <= 0 || top >= topMax;
  const isLast = offset === 0 || offset === offsetMax;
  if (isAtEnd === isLast) return { top, offset };
  // The scroll bar reached an end before the rows, or the reverse.
  const settled = scrollTo(offset, extent);
  if (settled.top === 0 && top <= 0) return { top: 0, offset: 0 };
  return settled.top === topMax && top >= topMax ? { top: topMax, offset: offsetMax } : settled;
}

/** The rows to render: the visible ones, and some around them. */
export function rowsAt(offset: number, extent: Extent, around = 8): { readonly first: number; readonly end: number } {
  const { rowCount, rowHeight, viewHeight } = extent;
  const first = Math.max(0, Math.floor(offset / rowHeight) - around);
  const end = Math.min(rowCount, Math.ceil((offset + viewHeight) / rowHeight) + around);
  return { first: Math.min(first, Math.max(0, end)), end };
}

/**
 * The offset that scrolls a row into view by the shortest distance.
 * @param isCentred true: a row that is not visible moves to the middle
 */
export function offsetFor(row: number, offset: number, extent: Extent, isCentred = false): number {
  const { rowHeight, viewHeight } = extent;
  const isPageVisible = row * rowHeight >= offset && (row + 1) * rowHeight <= offset + viewHeight;
  if (isCentred && !isPageVisible) return Math.max(0, (row + 0.5) * rowHeight - viewHeight / 2);
  if (row * rowHeight < offset) return row * rowHeight;
  return Math.max(offset, (row + 1) * rowHeight - viewHeight);
}
