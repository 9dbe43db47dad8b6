import type { ListingItem } from "../../../client/types.ts";
import type { Slicer } from "../../data/slicer.ts";

export const SORT_KEYS = ["name", "size", "modified", "mode", "owner"] as const;
export type SortKey = (typeof SORT_KEYS)[number];

export interface Order {
  readonly key: SortKey;
  readonly isDescending: boolean;
}

/** Entries between two looks at the clock. */
const STEP_COUNT = 2048;

/**
 * The indexes of the visible entries, in order: directories first, equal entries by name.
 * @param items in the order of the API: by the bytes of their names
 * @param filter part of a name, in any case
 */
export async function orderOf(
  items: readonly ListingItem[],
  { key, isDescending }: Order,
  filter: string,
  slicer: Slicer,
): Promise<Uint32Array> {
  const needle = filter.trim().toLowerCase();
  const keys = new Float64Array(items.length);
  const indices: number[] = [];
  for (let index = 0; index < items.length; index += 1) {
    if (index % STEP_COUNT === 0) await slicer.rest();
    const item = items[index];
    if (item === undefined || (needle !== "" && !item.name.toLowerCase().includes(needle))) continue;
    keys[index] = keyOf(item, key);
    indices.push(index);
  }
  const sign = isDescending ? -1 : 1;
  const rank = (index: number) => (items[index]?.is_dir === true ? 0 : 1);
  const compare = (a: number, b: number): number =>
    rank(a) - rank(b) || sign * ((keys[a] ?? 0) - (keys[b] ?? 0) || (key === "name" ? a - b : 0)) || a - b;
  return await sorted(Uint32Array.from(indices), compare, slicer);
}

function keyOf(item: ListingItem, key: SortKey): number {
  if (key === "size") return item.size;
  if (key === "modified") return Date.parse(item.modified_at);
  if (key === "mode") return Number.parseInt(item.mode, 8);
  // User and group ids have 32 bits each; a double holds 53, so the group is cut to 21.
  if (key === "owner") return item.uid * 0x20_0000 + Math.min(item.gid, 0x1f_ffff);
  return 0;
}

/** Bottom-up merge sort that yields; the sort of the runtime does not. */
async function sorted(
  values: Uint32Array,
  compare: (a: number, b: number) => number,
  slicer: Slicer,
): Promise<Uint32Array> {
  let from: Uint32Array = values;
  for (let start = 0; start < from.length; start += STEP_COUNT) {
    await slicer.rest();
    from.subarray(start, start + STEP_COUNT).sort(compare);
  }
  let into: Uint32Array = new Uint32Array(values.length);
  for (let width = STEP_COUNT; width < from.length; width *= 2) {
    for (let start = 0; start < from.length; start += 2 * width) {
      await merge(from, into, { start, middle: Math.min(start + width, from.length), width }, { compare, slicer });
    }
    [from, into] = [into, from];
  }
  return from;
}

interface Runs {
  readonly start: number;
  readonly middle: number;
  readonly width: number;
}

async function merge(
  from: Uint32Array,
  into: Uint32Array,
  { start, middle, width }: Runs,
  { compare, slicer }: { readonly compare: (a: number, b: number) => number; readonly slicer: Slicer },
): Promise<void> {
  const end = Math.min(middle + width, from.length);
  let left = start;
  let right = middle;
  for (let at = start; at < end; at += 1) {
    if ((at - start) % STEP_COUNT === 0) await slicer.rest();
    const isLeft = left < middle && (right >= end || compare(from[left] ?? 0, from[right] ?? 0) <= 0);
    into[at] = (isLeft ? from[left] : from[right]) ?? 0;
    if (isLeft) left += 1;
    else right += 1;
  }
}
