import type { ByteString } from "../../domain/guest-path.ts";
import type { Entry } from "../../domain/listing.ts";
import type { LayerEntry } from "../index/layer-index.ts";
import type { LayerFiles, OpenLayers } from "../layers/open-layers.ts";
import { LIST_PAGE_COUNT, LIST_PAGES_COUNT_MAX } from "../limits.ts";
import { Pacer, type Wanted } from "../pacer.ts";

/** An entry that is there: whiteouts are resolved. */
export type ImageEntry = LayerEntry & Entry;

/** What one layer has at a path. */
export interface Place {
  readonly layer: LayerFiles;
  readonly entry: ImageEntry;
}

/** What is visible at a path: the topmost entry and, for a directory, those of lower layers that merge into it. */
export type Node = readonly [Place, ...Place[]];

/** A directory of one layer: all of a `Place` that a search in it needs. */
export interface DirectoryPlace {
  readonly layer: LayerFiles;
  readonly entry: Pick<LayerEntry, "place">;
}

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
  async look({ open, pacer }: MergeTools, directories: readonly DirectoryPlace[], name: ByteString): Promise<void> {
    for (const { layer, entry: directory } of directories) {
      if (this.#isClosed) return;
      if (pacer.due()) await pacer.yield();
      const entry = open.look(layer, (index) => index.child(directory, name));
      if (entry !== null) this.add(layer, entry);
    }
  }
}

/** What the work of one reader of an image needs all the way. */
export interface MergeTools {
  readonly open: OpenLayers;
  readonly pacer: Pacer;
}

/** The tools of a reader who has gone when `wanted` throws. */
export function mergeTools(open: OpenLayers, wanted: Wanted | null): MergeTools {
  return { open, pacer: new Pacer(wanted) };
}

/** The roots of layers, the topmost first. They always merge: no mark of a layer's root hides those below. */
export async function rootOf({ open, pacer }: MergeTools, layers: readonly LayerFiles[]): Promise<Place[]> {
  const places: Place[] = [];
  for (const layer of layers) {
    if (pacer.due()) await pacer.yield();
    places.push({ layer, entry: open.look(layer, (index) => index.root()) as ImageEntry });
  }
  return places;
}

/** What the directory `node` shows under `name`, as overlayfs looks it up: from the top down. */
export async function childOf(
  tools: MergeTools,
  node: readonly DirectoryPlace[],
  name: ByteString,
): Promise<Node | null> {
  const stack = new PlaceStack();
  await stack.look(tools, node, name);
  return stack.node();
}

/** What the directory `node` shows under the name of a candidate that was found in it; null for a whiteout. */
export function nodeOf(node: readonly DirectoryPlace[], { found }: Candidate): Node | null {
  const stack = new PlaceStack();
  for (const { at, entry } of found) stack.add((node[at] as DirectoryPlace).layer, entry);
  return stack.node();
}

/** The same places, without what only somebody who shows them needs: a walk may be in thousands of them. */
export function bare(directories: readonly DirectoryPlace[]): DirectoryPlace[] {
  return directories.map(({ layer, entry: { place } }) => ({ layer, entry: { place } }));
}

/** Directories of a walk, counted from the deepest one up, that keep the pages that they have read. */
const READING_LEVELS_COUNT_MAX = 16;

/** A directory that a walk is in. */
export interface Level<Directory> {
  readonly directory: Directory;
  readonly names: Names;
}

/** The directories that a walk is in, the deepest last. Those far above it keep no more than their places. */
export class Levels<Directory> {
  readonly #levels: Level<Directory>[] = [];

  get count(): number {
    return this.#levels.length;
  }

  top(): Level<Directory> | undefined {
    return this.#levels.at(-1);
  }

  push(level: Level<Directory>): void {
    this.#levels.push(level);
    this.#levels.at(-1 - READING_LEVELS_COUNT_MAX)?.names.suspend();
  }

  pop(): void {
    this.#levels.pop();
  }
}

/**
 * Every name that one of `directories` has, by its bytes, from the first one behind `after` on. Memory does not grow
 * with the directories, and with `depth` not with a whole walk; the event loop goes on meanwhile.
 */
export class Names {
  readonly #tools: MergeTools;
  /** where names are looked for, the topmost first */
  readonly directories: readonly DirectoryPlace[];
  readonly #pageCount: number;
  #after: ByteString | null;
  #queue: ReaderQueue | null = null;
  /** readers that are not in the queue: they gave the last name, or have not begun */
  #due: DirectoryReader[] = [];

  constructor(
    tools: MergeTools,
    directories: readonly DirectoryPlace[],
    { after, depth }: { readonly after: ByteString | null; readonly depth: number },
  ) {
    this.#tools = tools;
    this.directories = bare(directories);
    const pages = LIST_PAGES_COUNT_MAX / 2 ** Math.min(depth, PAGE_HALVINGS_COUNT_MAX);
    this.#pageCount = Math.max(PAGE_COUNT_MIN, Math.min(LIST_PAGE_COUNT, Math.floor(pages / directories.length)));
    this.#after = after;
  }

  /** The next name and who has it; null behind the last one. */
  async next(): Promise<Candidate | null> {
    const { pacer } = this.#tools;
    const queue = this.#queue ?? this.#begin();
    for (const reader of this.#due) {
      if (pacer.due()) await pacer.yield();
      queue.add(reader);
    }
    this.#due = queue.takeFirst();
    const name = this.#due[0]?.peek()?.name;
    if (name === undefined) return null;
    const found = this.#due.map((reader) => ({ at: reader.at, entry: reader.peek() as LayerEntry }));
    for (const reader of this.#due) reader.skip();
    this.#after = name;
    return { name, found };
  }

  /** Forgets the pages that were read; the next name is looked for again. */
  suspend(): void {
    this.#queue = null;
    this.#due = [];
  }

  #begin(): ReaderQueue {
    const { open } = this.#tools;
    this.#due = this.directories.map(
      (place, at) => new DirectoryReader(open, { place, at }, this.#after, this.#pageCount),
    );
    this.#queue = new ReaderQueue();
    return this.#queue;
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

/** Smallest page of a reader. */
const PAGE_COUNT_MIN = 4;
/** How often the pages of a walk are halved on its way down. */
const PAGE_HALVINGS_COUNT_MAX = 8;

/** The children that one layer has, a page at a time. */
class DirectoryReader {
  /** number of the place */
  readonly at: number;
  readonly #open: OpenLayers;
  readonly #place: DirectoryPlace;
  readonly #pageCount: number;
  #page: readonly LayerEntry[] = [];
  #next = 0;
  #after: ByteString | null;
  #isLastPage = false;

  constructor(
    open: OpenLayers,
    { place, at }: { readonly place: DirectoryPlace; readonly at: number },
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
