import { describe, expect, test } from "bun:test";
import {
  ELEMENT_PIXELS_MAX,
  type Extent,
  elementHeight,
  offsetFor,
  rowsAt,
  type Scroll,
  scrolled,
  scrollTo,
} from "../../../src/web/parts/lists/virtual-scroll.ts";

const few: Extent = { rowCount: 1_000, rowHeight: 32, viewHeight: 320 };
const many: Extent = { rowCount: 1_000_000, rowHeight: 32, viewHeight: 320 };
const start: Scroll = { top: 0, offset: 0 };
const lastOffset = ({ rowCount, rowHeight, viewHeight }: Extent): number => rowCount * rowHeight - viewHeight;
const lastTop = (extent: Extent): number => elementHeight(extent) - extent.viewHeight;

describe("rows within the height of an element", () => {
  test("are at the scroll position of the element", () => {
    expect(elementHeight(few)).toBe(32_000);
    expect(scrolled(start, 12_345, few)).toEqual({ top: 12_345, offset: 12_345 });
    expect(scrollTo(500, few)).toEqual({ top: 500, offset: 500 });
  });

  test("do not move in a bounce beyond their ends", () => {
    expect(scrolled(start, -40, few).offset).toBe(0);
    expect(scrolled(start, 40_000, few).offset).toBe(lastOffset(few));
  });
});

describe("rows beyond the height of an element", () => {
  test("have an element that browsers can lay out", () => {
    expect(elementHeight(many)).toBe(ELEMENT_PIXELS_MAX);
    expect(ELEMENT_PIXELS_MAX).toBeLessThan(17_800_000);
  });

  test("move by exactly the distance of a short scroll", () => {
    expect(scrolled({ top: 4_000, offset: 16_000 }, 4_100, many)).toEqual({ top: 4_100, offset: 16_100 });
  });

  test("move in proportion when the bar is dragged, to the last row at its end", () => {
    expect(scrolled(start, lastTop(many), many)).toEqual({ top: lastTop(many), offset: lastOffset(many) });
    const middle = scrolled(start, lastTop(many) / 2, many);
    expect(middle.offset).toBeCloseTo(lastOffset(many) / 2);
  });

  test("can all be reached by short scrolls, in both directions", () => {
    let scroll = scrollTo(lastOffset(many) - 10_000, many);
    for (let step = 0; step < 200; step += 1)
      scroll = scrolled(scroll, Math.min(lastTop(many), scroll.top + 100), many);
    expect(scroll.offset).toBe(lastOffset(many));
    scroll = scrollTo(10_000, many);
    for (let step = 0; step < 200; step += 1) scroll = scrolled(scroll, Math.max(0, scroll.top - 100), many);
    expect(scroll.offset).toBe(0);
  });

  test("move the bar back when it reaches its end before the rows do", () => {
    const near = { top: 50, offset: 9_000 };
    const scroll = scrolled(near, 0, many);
    expect(scroll.offset).toBe(8_950);
    expect(scroll.top).toBeGreaterThan(0);
  });
});

describe("the rendered rows", () => {
  test("are the visible rows and some around them", () => {
    expect(rowsAt(0, few)).toEqual({ first: 0, end: 18 });
    expect(rowsAt(3_200, few)).toEqual({ first: 92, end: 118 });
    expect(rowsAt(lastOffset(many), many)).toEqual({ first: 999_982, end: 1_000_000 });
  });

  test("are empty for an empty list, and end with a list that has become shorter", () => {
    expect(rowsAt(0, { ...few, rowCount: 0 })).toEqual({ first: 0, end: 0 });
    const { first, end } = rowsAt(50_000, { ...few, rowCount: 10 });
    expect(first).toBeLessThanOrEqual(end);
    expect(end).toBe(10);
  });

  test("a row comes into view by the shortest scroll", () => {
    expect(offsetFor(5, 320, few)).toBe(160);
    expect(offsetFor(15, 320, few)).toBe(320);
    expect(offsetFor(30, 320, few)).toBe(31 * 32 - 320);
  });
});
