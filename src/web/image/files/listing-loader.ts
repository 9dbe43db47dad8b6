import { chunksOf } from "../../../client/chunks.ts";
import type { ListingItem } from "../../../client/types.ts";
import { request } from "../../data/api.ts";
import { Problem, problemOf } from "../../data/problem.ts";
import { onSessionChange } from "../../data/session.ts";
import { Slicer } from "../../data/slicer.ts";
import { JsonItems } from "../json-items.ts";
import { childOf, type EncodedPath, parentOf, shownName } from "../paths.ts";
import { contentPath } from "./content.ts";

/** Entries of a directory that are read; whoever looks for others finds them by name. */
export const ENTRIES_MAX = 200_000;
/** Entries of directories that are kept, so that going back shows them at once. */
const KEPT_ENTRIES_MAX = 250_000;
/** Bytes that are parsed without a look at the clock. */
const PIECE_BYTES = 65_536;

/** What is in a directory, in the order of the API: by the bytes of names. It grows while it is read. */
export interface Listing {
  readonly items: readonly ListingItem[];
  readonly isComplete: boolean;
  /** true: there are more than {@link ENTRIES_MAX} */
  readonly isCut: boolean;
}

const kept = new Map<string, Listing>();
onSessionChange(() => kept.clear());

/** A listing that was read before; an image does not change. */
function keptListing(image: string, path: EncodedPath): Listing | undefined {
  return kept.get(contentPath(image, path, "list"));
}

/** What a listing that was read says of a path. */
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
 * @param tell is called with what there is so far, each time that the page can draw
 * @returns null when the path is not a directory
 * @throws Problem; the reason of the signal
 */
export async function readListing(
  { image, path }: { readonly image: string; readonly path: EncodedPath },
  signal: AbortSignal,
  tell: (listing: Listing) => void,
): Promise<Listing | null> {
  const key = contentPath(image, path, "list");
  const known = kept.get(key);
  if (known !== undefined) return known;
  const leaving = new AbortController();
  const either = AbortSignal.any([signal, leaving.signal]);
  let response: Response;
  try {
    response = await request(key, { signal: either });
  } catch (error) {
    if (isNoDirectory(problemOf(error))) return null;
    throw error;
  }
  const items: ListingItem[] = [];
  const reader = new JsonItems<ListingItem>();
  const slicer = new Slicer({ signal });
  for await (const piece of piecesOf(response, slicer, () => tell({ items, isComplete: false, isCut: false }))) {
    for (const item of reader.read(piece)) items.push(item);
    if (items.length > ENTRIES_MAX) break;
  }
  const isCut = items.length > ENTRIES_MAX;
  if (isCut) {
    items.length = ENTRIES_MAX;
    leaving.abort();
  } else endOf(reader);
  const listing = { items, isComplete: true, isCut };
  keep(key, listing);
  return listing;
}

function endOf(reader: JsonItems<ListingItem>): void {
  try {
    reader.end();
  } catch (cause) {
    // SyntaxError: the answer ended in its middle.
    throw new Problem("The listing broke off.", { code: "unreachable", cause });
  }
}

function isNoDirectory({ code, message }: Problem): boolean {
  return code === "invalid_path" && message.includes("not a directory");
}

/** The body of an answer in small pieces, with breaks. */
async function* piecesOf(
  response: Response,
  slicer: Slicer,
  drawn: () => void,
): AsyncGenerator<Uint8Array, void, undefined> {
  let last = performance.now();
  for await (const chunk of response.body === null ? [] : chunksOf(response.body)) {
    for (let at = 0; at < chunk.byteLength; at += PIECE_BYTES) {
      yield chunk.subarray(at, at + PIECE_BYTES);
      await slicer.rest();
    }
    // What is drawn for each piece would take longer than what is read.
    if (performance.now() - last < 100) continue;
    last = performance.now();
    drawn();
  }
}
