import { setImmediate } from "node:timers/promises";
import type { ByteString } from "../domain/guest-path.ts";
import type { Entry } from "../domain/listing.ts";
import type { LayerEntry } from "./layer-index.ts";
import { LIST_PAGE_COUNT, LIST_PAGES_COUNT_MAX } from "./limits.ts";
import type { LayerFiles, OpenLayers } from "./open-layers.ts";

/** An entry that is there: whiteouts are resolved. */
export type ImageEntry = LayerEntry & Entry;

/** What one layer has at a path. */
export interface Place {
  readonly layer: LayerFiles;
  readonly entry: ImageEntry;
}

/** What is visible at a path: the topmost entry and, for a directory, those of lower layers that merge into it. */
export type Node = readonly [Place, ...Place[]];

/** A child of a directory, found in some of its places. */
export interface Candidate {
  readonly name: ByteString;
  /** the topmost first; whiteouts included */
  readonly found: readonly { readonly at: number; readonly entry: LayerEntry }[];
}

/** Gathers, from the top down, what overlayfs merges at one name. */
export class PlaceStack {
  readonly #places: Place[] = [];
  #isClosed = false;

  /** true when nothing that lies lower can be seen */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  node(): Node | null {
    const [top, ...lower] = this.#places;
    return top === undefined ? null : [top, ...lower];
  }

  /** Adds what the next lower layer has; nothing once it is closed. */
  add(layer: LayerFiles, entry: LayerEntry): void {
    if (this.#isClosed) return;
    // A whiteout or anything else that is no directory ends a merge; on top it is what there is.
    const isDirectory = entry.type === "d";
    this.#isClosed = !isDirectory || entry.opaque;
    if (entry.type === "w" || (!isDirectory && this.#places.length > 0)) return;
    this.#places.push({ layer, entry: entry as ImageEntry });
  }

  /** Adds what lower directories have under `name`. */
  look(open: OpenLayers, directories: readonly Place[], name: ByteString): void {
    for (const { layer, entry: directory } of directories) {
      if (this.#isClosed) return;
      using lease = open.acquire(layer);
      const entry = lease.index.child(directory, name);
      if (entry !== null) this.add(layer, entry);
    }
  }
}

/** What the directory `node` shows under `name`, as overlayfs looks it up: from the top down. */
export function childOf(open: OpenLayers, node: readonly Place[], name: ByteString): Node | null {
  const stack = new PlaceStack();
  stack.look(open, node, name);
  return stack.node();
}

/** The children of a directory, by the bytes of their names. */
export async function* childrenOf(
  open: OpenLayers,
  node: readonly Place[],
  depth = 0,
): AsyncGenerator<Node, void, undefined> {
  for await (const { found } of candidatesOf(open, node, { after: null, depth })) {
    const stack = new PlaceStack();
    for (const { at, entry } of found) stack.add((node[at] as Place).layer, entry);
    const child = stack.node();
    if (child !== null) yield child;
  }
}

/**
 * Every name that one of `directories` has, by its bytes, from the first one behind `after` on. Memory does not grow
 * with the directories, and with `depth` not with a whole walk; the event loop goes on between pages.
 */
export async function* candidatesOf(
  open: OpenLayers,
  directories: readonly Place[],
  options: { readonly after: ByteString | null; readonly depth: number },
): AsyncGenerator<Candidate, void, undefined> {
  const pages = LIST_PAGES_COUNT_MAX / 2 ** Math.min(options.depth, PAGE_HALVINGS_COUNT_MAX);
  const pageCount = Math.max(PAGE_COUNT_MIN, Math.min(LIST_PAGE_COUNT, Math.floor(pages / directories.length)));
  const readers = directories.map((place) => new DirectoryReader(open, place, options.after, pageCount));
  for (let isFirst = true; ; isFirst = false) {
    if (!isFirst && readers.some((reader) => reader.isEmpty)) await setImmediate();
    let first: LayerEntry | null = null;
    for (const reader of readers) {
      const entry = reader.peek();
      if (entry !== null && (first === null || entry.name < first.name)) first = entry;
    }
    if (first === null) return;
    const { name } = first;
    const found: { at: number; entry: LayerEntry }[] = [];
    for (const [at, reader] of readers.entries()) {
      const entry = reader.peek();
      if (entry?.name !== name) continue;
      found.push({ at, entry });
      reader.skip();
    }
    yield { name, found };
  }
}

/** Smallest page of a reader. */
const PAGE_COUNT_MIN = 4;
/** How often the pages of a walk are halved on its way down. */
const PAGE_HALVINGS_COUNT_MAX = 8;

/** The children that one layer has, a page at a time. */
class DirectoryReader {
  readonly #open: OpenLayers;
  readonly #place: Place;
  readonly #pageCount: number;
  #page: LayerEntry[] = [];
  #at = 0;
  #after: ByteString | null;
  #isLastPage = false;

  constructor(open: OpenLayers, place: Place, after: ByteString | null, pageCount: number) {
    this.#open = open;
    this.#place = place;
    this.#after = after;
    this.#pageCount = pageCount;
  }

  /** True when `peek` has to read the disk. */
  get isEmpty(): boolean {
    return this.#at === this.#page.length && !this.#isLastPage;
  }

  peek(): LayerEntry | null {
    if (this.isEmpty) this.#fill();
    return this.#page[this.#at] ?? null;
  }

  skip(): void {
    this.#at++;
  }

  #fill(): void {
    using lease = this.#open.acquire(this.#place.layer);
    this.#page = lease.index.children(this.#place.entry, this.#after, this.#pageCount);
    this.#at = 0;
    this.#isLastPage = this.#page.length < this.#pageCount;
    this.#after = this.#page.at(-1)?.name ?? this.#after;
  }
}
