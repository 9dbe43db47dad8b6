import type { FoundEntries, GrepMatch } from "../../../client/types.ts";
import { request } from "../../data/api.ts";
import { readListing } from "../files/listing-loader.ts";
import { ITEMS_ACCEPTED, itemsOf } from "../items.ts";
import type { EncodedPath } from "../paths.ts";
import { searchSteps, type TextSearch } from "./search-steps.ts";

/** Largest number of matching lines. */
export const MATCHES_MAX = 1000;
/** Largest number of names. */
export const NAMES_MAX = 1000;
/** The progress of a search. */
export interface SearchState {
  readonly matches: readonly GrepMatch[];
  /** number of searched parts of the tree, and of all parts */
  readonly done: number;
  readonly all: number;
  readonly filesSearched: number;
  readonly bytesSearched: number;
  /** limits that ended it in a part of the tree */
  readonly bounds: readonly string[];
}

/** Query of one request, with paths as bytes. */
function grepQuery(
  { pattern, glob, isCaseSensitive }: TextSearch,
  paths: readonly EncodedPath[],
  limit: number,
): string {
  const fields = new URLSearchParams({ pattern, limit: String(limit), details: "true" });
  if (glob !== "") fields.set("glob", glob);
  if (!isCaseSensitive) fields.set("case", "insensitive");
  return `${fields}&${paths.map((path) => `path=${path}`).join("&")}`;
}

/** @throws Problem; the reason of the signal */
export async function searchText(
  search: TextSearch,
  signal: AbortSignal,
  tell: (state: SearchState) => void,
): Promise<SearchState> {
  const listing = await readListing(search, signal, () => undefined);
  const steps = searchSteps(search, listing === null || listing.isCut ? null : listing.items);
  let state: SearchState = { matches: [], done: 0, all: steps.length, filesSearched: 0, bytesSearched: 0, bounds: [] };
  for (const paths of steps) {
    tell(state);
    state = await searchedStep(search, paths, state, signal);
    if (state.matches.length >= MATCHES_MAX) break;
  }
  return state;
}

/** The summary at the end of an answer. */
interface GrepEnd {
  readonly truncated_by?: readonly string[];
  readonly files_searched?: number;
  readonly bytes_searched?: number;
}

async function searchedStep(
  search: TextSearch,
  paths: readonly EncodedPath[],
  state: SearchState,
  signal: AbortSignal,
): Promise<SearchState> {
  const query = grepQuery(search, paths, MATCHES_MAX - state.matches.length);
  const address = `/v1/inspect/${encodeURIComponent(search.image)}/grep?${query}`;
  const response = await request(address, { headers: ITEMS_ACCEPTED, signal });
  const matches = [...state.matches];
  let last: GrepEnd = {};
  for await (const { items, end } of itemsOf<GrepMatch, GrepEnd>(response, signal)) {
    matches.push(...items);
    last = end ?? last;
  }
  const { truncated_by: bounds = [], files_searched: files = 0, bytes_searched: bytes = 0 } = last;
  return {
    matches,
    done: state.done + 1,
    all: state.all,
    filesSearched: state.filesSearched + files,
    bytesSearched: state.bytesSearched + bytes,
    bounds: [...new Set([...state.bounds, ...bounds])],
  };
}

/** Finds entries by name. @throws Problem; the reason of the signal */
export async function searchNames(
  { image, path, glob }: Pick<TextSearch, "image" | "path" | "glob">,
  signal: AbortSignal,
): Promise<FoundEntries> {
  const fields = new URLSearchParams({ glob, limit: String(NAMES_MAX) });
  const response = await request(`/v1/inspect/${encodeURIComponent(image)}/find?${fields}&path=${path}`, { signal });
  return (await response.json()) as FoundEntries;
}
