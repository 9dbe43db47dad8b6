import type { Item } from "./folds.ts";

/** Distance of columns and rows, and size of a card, in `px` at scale 1. */
export const COLUMN_PX = 288;
export const ROW_PX = 64;
export const CARD_WIDTH_PX = 240;
export const CARD_HEIGHT_PX = 48;

/** Items per slice. */
const PIECE = 1024;

/** A drawing: items in the order of their rows, each before its children. */
export interface Layout {
  readonly items: readonly Item[];
  readonly byKey: ReadonlyMap<string, Item>;
  readonly columns: number;
  readonly rows: number;
}

export interface Area {
  readonly firstColumn: number;
  readonly lastColumn: number;
  readonly firstRow: number;
  readonly lastRow: number;
}

/**
 * Places items: depth goes right, and the first child stands in the row of its parent. So a line of runs is one straight
 * row, growth at its end moves nothing, and a new branch moves only the rows below it. (A tidy tree, which centres
 * parents, would move all ancestors of a growing branch.) Works in slices.
 *
 * @param items each before its children
 */
export function* layOut(items: readonly Item[]): Generator<void, Layout> {
  const byKey = new Map<string, Item>();
  let row = -1;
  let columns = 0;
  for (const item of items) {
    if (item.place > 1 || item.parent === null) row++;
    item.row = row;
    item.lastRow = row;
    if (item.parent !== null) item.parent.lastRow = row;
    columns = Math.max(columns, item.column + 1);
    byKey.set(item.key, item);
    if (byKey.size % PIECE === 0) yield;
  }
  return { items, byKey, columns, rows: row + 1 };
}

/** Index of the first item in a row or below it. */
function firstFrom(items: readonly Item[], row: number): number {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((items[middle]?.row ?? 0) < row) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The items that stand in an area, at most `max` of them; null when there are more. */
export function itemsIn({ items }: Layout, area: Area, max: number): Item[] | null {
  const inArea: Item[] = [];
  for (let index = firstFrom(items, area.firstRow); index < items.length; index++) {
    const item = items[index] as Item;
    if (item.row > area.lastRow) break;
    if (item.column < area.firstColumn || item.column > area.lastColumn) continue;
    if (inArea.length === max) return null;
    inArea.push(item);
  }
  return inArea;
}

/** The item at a place, or null. */
export function itemAt(layout: Layout, column: number, row: number): Item | null {
  const area = { firstColumn: column, lastColumn: column, firstRow: row, lastRow: row };
  return itemsIn(layout, area, 1)?.[0] ?? null;
}

/**
 * The items whose connection with their parent is visible in some rows: those in these rows, and those further down whose
 * connection passes. The latter are children of ancestors of the first item below: the last child of each stands for all.
 */
export function* connectedIn({ items }: Layout, firstRow: number, lastRow: number): Generator<Connection> {
  let index = firstFrom(items, firstRow);
  for (; index < items.length; index++) {
    const item = items[index] as Item;
    if (item.row > lastRow) break;
    if (item.parent !== null) yield { from: item.parent, to: item, row: item.row };
  }
  for (let from = items[index]?.parent ?? null; from !== null; from = from.parent) {
    if (from.row <= lastRow && from.lastRow > lastRow) yield { from, to: null, row: from.lastRow };
  }
}

/** A connection from an item to a child. */
export interface Connection {
  readonly from: Item;
  /** null: a child further down */
  readonly to: Item | null;
  readonly row: number;
}
