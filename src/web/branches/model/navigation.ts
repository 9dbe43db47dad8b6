import type { Item } from "./folds.ts";
import { itemAt, type Layout } from "./layout.ts";

/** A move by a key. */
export type Step = "up" | "down" | "parent" | "child" | "first" | "last" | "previous" | "next";

function indexOf({ items }: Layout, item: Item): number {
  // Items of one row follow each other by columns.
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const candidate = items[middle] as Item;
    if (candidate.row < item.row || (candidate.row === item.row && candidate.column < item.column)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The item after a step; the same one at an edge. */
export function stepFrom(layout: Layout, item: Item, step: Step): Item {
  const { items } = layout;
  const index = indexOf(layout, item);
  switch (step) {
    case "previous":
      return items[index - 1] ?? item;
    case "next":
      return items[index + 1] ?? item;
    case "parent":
      return item.parent ?? item;
    case "child":
      return items[index + 1]?.parent === item ? (items[index + 1] as Item) : item;
    case "first":
      return items[0] ?? item;
    case "last":
      return items.at(-1) ?? item;
    case "up":
      return nearest(layout, item, -1);
    case "down":
      return nearest(layout, item, 1);
  }
}

/** The nearest item above or below: that of the same column in the next row, or the last one before that column. */
function nearest(layout: Layout, item: Item, by: -1 | 1): Item {
  const row = item.row + by;
  if (row < 0 || row >= layout.rows) return item;
  for (let column = item.column; column >= 0; column--) {
    const candidate = itemAt(layout, column, row);
    if (candidate !== null) return candidate;
  }
  // The whole row is further right.
  return layout.items[indexOf(layout, { ...item, row, column: 0 })] ?? item;
}

/** The next item whose text begins with the typed letters, wrapping around at the end; null: none. */
export function typedAhead(layout: Layout, from: Item, typed: string, textOf: (item: Item) => string): Item | null {
  const { items } = layout;
  const text = typed.toLowerCase();
  // A first letter moves to the next item; further letters may still mean the same one.
  const start = indexOf(layout, from) + (text.length === 1 ? 1 : 0);
  for (let offset = 0; offset < items.length; offset++) {
    const item = items[(start + offset) % items.length] as Item;
    if (textOf(item).toLowerCase().startsWith(text)) return item;
  }
  return null;
}

/** The next or previous match of the search, wrapping around at the ends; null: none. */
export function hitAfter(
  { items }: Layout,
  from: Item | null,
  isBack: boolean,
): Extract<Item, { kind: "image" }> | null {
  const start = from === null ? -1 : items.indexOf(from);
  for (let count = 1; count <= items.length; count++) {
    const offset = isBack ? -count : count;
    const item = items[(((start + offset) % items.length) + items.length) % items.length];
    if (item?.kind === "image" && item.image.isHit) return item;
  }
  return null;
}
