import type { ListingItem } from "../../../client/types.ts";
import { request } from "../../data/api.ts";
import { type Problem, problemOf } from "../../data/problem.ts";
import { onSessionChange } from "../../data/session.ts";
import { ITEMS_ACCEPTED, itemsOf } from "../items.ts";
import { childOf, type EncodedPath, parentOf, shownName } from "../paths.ts";
import { contentPath } from "./content.ts";

/** Largest number of entries that are read from a directory; the search finds the others. */
export const ENTRIES_MAX = 200_000;
/** Largest number of cached entries, so that going back shows them at once. */
const KEPT_ENTRIES_MAX = 250_000;
/** Shortest time between two drawings of a growing listing, in `milliseconds`: drawing takes longer than reading. */
const DRAWING_MS = 100;

/** Entries of a directory, in the order of the API: by the bytes of names. It grows while it is read. */
export interface Listing {
  readonly items: readonly ListingItem[];
  readonly isComplete: boolean;
  /** true: there are more than {@link ENTRIES_MAX} */
  readonly isCut: boolean;
}

const kept = new Map<string, Listing>();
onSessionChange(() => kept.clear());

/** The cached listing of a directory; images do not change. */
function keptListing(image: string, path: EncodedPath): Listing | undefined {
  return kept.get(contentPath(image, path, "list"));
}

/** The item of a path in a cached listing. */
export function keptItem(image: string, path: EncodedPath): ListingItem | undefined {
  const parent = parentOf(path);
  const name = shownName(path);
  // Texts are compared before bytes, because a directory may have 200,000 entries.
  const mayBe = (item: ListingItem) => item.name_base64 !== undefined || item.name === name;
  return keptListing(image, parent)?.items.find((item) => mayBe(item) && childOf(parent, item) === path);
}

function keep(key: string, listing: Listing): void {
  kept.set(key, listing);
  let count = [...kept.values()].reduce((sum, { items }) => sum + items.length, 0);
  for (const [oldest, { items }] of kept) {
    if (count <= KEPT_ENTRIES_MAX || oldest === key) return;
    kept.delete(oldest);
    count -= items.length;
  }
}

/**
 * Reads a directory.
 * @param tell is called with the entries so far, whenever the page can draw
 * @returns null when the path is not a directory
 * @throws Problem; the reason of the signal
 */
export async function readListing(
  { image, path }: { readonly image: string; readonly path: EncodedPath },
  signal: AbortSignal,
  tell: (listing: Listing) => void,
): Promise<Listing | null> {
  const key = contentPath(image, path, "list");
  const cached = kept.get(key);
  if (cached !== undefined) return cached;
  const leaving = new AbortController();
  const either = AbortSignal.any([signal, leaving.signal]);
  let response: Response;
  try {
    response = await request(key, { headers: ITEMS_ACCEPTED, signal: either });
  } catch (error) {
    if (isNoDirectory(problemOf(error))) return null;
    throw error;
  }
  const items: ListingItem[] = [];
  let drawnAt = performance.now();
  for await (const { items: more } of itemsOf<ListingItem, object>(response, signal)) {
    for (const item of more) items.push(item);
    if (items.length > ENTRIES_MAX) break;
    if (performance.now() - drawnAt < DRAWING_MS) continue;
    drawnAt = performance.now();
    tell({ items, isComplete: false, isCut: false });
  }
  const isCut = items.length > ENTRIES_MAX;
  if (isCut) {
    items.length = ENTRIES_MAX;
    leaving.abort();
  }
  const listing = { items, isComplete: true, isCut };
  keep(key, listing);
  return listing;
}

function isNoDirectory({ code, message }: Problem): boolean {
  return code === "invalid_path" && message.includes("not a directory");
}
