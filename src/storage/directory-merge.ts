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
      const entry = open.look(layer, (index) => index.child(directory, name));
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
  const queue = new ReaderQueue();
  let due = directories.map((place, at) => new DirectoryReader(open, { place, at }, options.after, pageCount));
  // What a small directory costs is no turn's worth; before a large one, much of its request has been done in this one.
  let mayHold = directories.every(({ entry }) => entry.place.childCount < SMALL_DIRECTORY_COUNT);
  for (;;) {
    if (!mayHold && due.some((reader) => reader.isEmpty)) await setImmediate();
    mayHold = false;
    for (const reader of due) queue.add(reader);
    due = queue.takeFirst();
    const name = due[0]?.peek()?.name;
    if (name === undefined) return;
    const found = due.map((reader) => ({ at: reader.at, entry: reader.peek() as LayerEntry }));
    for (const reader of due) reader.skip();
    yield { name, found };
  }
}

/** Readers by the names that they have come to, and those with the same name by their places. */
class ReaderQueue {
  /** a binary heap */
  readonly #readers: DirectoryReader[] = [];

  /** Adds a reader, unless it has come to its end. */
  add(reader: DirectoryReader): void {
    if (reader.peek() === null) return;
    const readers = this.#readers;
    let at = readers.length;
    for (let above = (at - 1) >> 1; at > 0 && isBefore(reader, readers[above]); above = (at - 1) >> 1) {
      readers[at] = readers[above] as DirectoryReader;
      at = above;
    }
    readers[at] = reader;
  }

  /** Takes out all that have come to the first name. */
  takeFirst(): DirectoryReader[] {
    const taken: DirectoryReader[] = [];
    const name = this.#readers[0]?.peek()?.name;
    while (name !== undefined && this.#readers[0]?.peek()?.name === name) taken.push(this.#take());
    return taken;
  }

  #take(): DirectoryReader {
    const readers = this.#readers;
    const first = readers[0] as DirectoryReader;
    const last = readers.pop() as DirectoryReader;
    if (last === first) return first;
    let at = 0;
    for (let below = 1; below < readers.length; below = 2 * at + 1) {
      if (below + 1 < readers.length && isBefore(readers[below + 1] as DirectoryReader, readers[below])) below++;
      if (!isBefore(readers[below] as DirectoryReader, last)) break;
      readers[at] = readers[below] as DirectoryReader;
      at = below;
    }
    readers[at] = last;
    return first;
  }
}

/** Both have a name to offer. */
function isBefore(a: DirectoryReader, b: DirectoryReader | undefined): boolean {
  const [first, second] = [a.peek()?.name ?? "", b?.peek()?.name ?? ""];
  return first === second ? a.at < (b?.at ?? 0) : first < second;
}

/** Children of a directory that are read at once without a thought of the event loop. */
const SMALL_DIRECTORY_COUNT = 64;
/** Smallest page of a reader. */
const PAGE_COUNT_MIN = 4;
/** How often the pages of a walk are halved on its way down. */
const PAGE_HALVINGS_COUNT_MAX = 8;

/** The children that one layer has, a page at a time. */
class DirectoryReader {
  /** number of the place */
  readonly at: number;
  readonly #open: OpenLayers;
  readonly #place: Place;
  readonly #pageCount: number;
  #page: readonly LayerEntry[] = [];
  #next = 0;
  #after: ByteString | null;
  #isLastPage = false;

  constructor(
    open: OpenLayers,
    { place, at }: { readonly place: Place; readonly at: number },
    after: ByteString | null,
    pageCount: number,
  ) {
    this.#open = open;
    this.#place = place;
    this.at = at;
    this.#after = after;
    this.#pageCount = pageCount;
  }

  /** True when `peek` has to read the disk. */
  get isEmpty(): boolean {
    return this.#next === this.#page.length && !this.#isLastPage;
  }

  peek(): LayerEntry | null {
    if (this.isEmpty) this.#fill();
    return this.#page[this.#next] ?? null;
  }

  skip(): void {
    this.#next++;
  }

  #fill(): void {
    const { layer, entry } = this.#place;
    this.#page = this.#open.look(layer, (index) => index.children(entry, this.#after, this.#pageCount));
    this.#next = 0;
    this.#isLastPage = this.#page.length < this.#pageCount;
    this.#after = this.#page.at(-1)?.name ?? this.#after;
  }
}
