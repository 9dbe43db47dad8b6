import type { ByteString } from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";
import type { LayerEntry } from "../index/layer-index.ts";
import { LIST_PAGE_COUNT, LIST_PAGES_COUNT_MAX } from "../limits.ts";
import { type Cancellation, Pacer } from "../pacer.ts";
import type { LayerFiles, OpenLayers } from "./open-layers.ts";

/** An entry that exists in the merged tree: not a whiteout. */
export type ImageEntry = LayerEntry & Entry;

/** An entry and the layer that has it. */
export interface LocatedEntry {
  readonly layer: LayerFiles;
  readonly entry: ImageEntry;
}

/** The merged tree at a path: the top entry and, for a directory, the lower ones that merge into it. */
export type Node = readonly [LocatedEntry, ...LocatedEntry[]];

/** A directory of one layer, reduced to what a search in it needs. */
export interface LocatedDirectory {
  readonly layer: LayerFiles;
  readonly entry: Pick<LayerEntry, "offsets">;
}

/** A child of a merged directory, found in some of the layers. */
export interface Candidate {
  readonly name: ByteString;
  /** topmost first, including whiteouts; `at` is the position in the merged directory */
  readonly entries: readonly { readonly at: number; readonly entry: LayerEntry }[];
}

/** Collects the entries that overlayfs merges at one name, from the top layer down. */
export class OverlayStack {
  readonly #entries: LocatedEntry[] = [];
  /** true when no lower layer can be visible */
  #isClosed = false;

  node(): Node | null {
    const [top, ...lower] = this.#entries;
    return top === undefined ? null : [top, ...lower];
  }

  /** Adds the entry of the next lower layer, unless it is hidden. */
  add(layer: LayerFiles, entry: LayerEntry): void {
    if (this.#isClosed) return;
    // A whiteout or a non-directory hides everything below. A non-directory counts only as the top entry.
    const isDirectory = entry.type === "d";
    this.#isClosed = !isDirectory || entry.opaque;
    if (entry.type === "w" || (!isDirectory && this.#entries.length > 0)) return;
    this.#entries.push({ layer, entry: entry as ImageEntry });
  }

  /** Adds the entries named `name` of lower directories. */
  async lookUp({ open, pacer }: MergeTools, directories: readonly LocatedDirectory[], name: ByteString): Promise<void> {
    for (const { layer, entry: directory } of directories) {
      if (this.#isClosed) return;
      if (pacer.shouldYield()) await pacer.yield();
      const entry = open.readIndex(layer, (index) => index.child(directory, name));
      if (entry !== null) this.add(layer, entry);
    }
  }
}

/** Tools that one reader of an image shares. */
export interface MergeTools {
  readonly open: OpenLayers;
  readonly pacer: Pacer;
}

/** The tools of a reader; `cancellation` ends its work. */
export function mergeTools(open: OpenLayers, cancellation: Cancellation | null): MergeTools {
  return { open, pacer: new Pacer(cancellation) };
}

/** The roots of layers, topmost first. They always merge: overlayfs ignores an opaque mark on a layer's root. */
export async function rootOf({ open, pacer }: MergeTools, layers: readonly LayerFiles[]): Promise<LocatedEntry[]> {
  const entries: LocatedEntry[] = [];
  for (const layer of layers) {
    if (pacer.shouldYield()) await pacer.yield();
    entries.push({ layer, entry: open.readIndex(layer, (index) => index.root()) as ImageEntry });
  }
  return entries;
}

/** The node `name` of the directory `node`, looked up like overlayfs, from the top down; null when there is none. */
export async function childOf(
  tools: MergeTools,
  node: readonly LocatedDirectory[],
  name: ByteString,
): Promise<Node | null> {
  const stack = new OverlayStack();
  await stack.lookUp(tools, node, name);
  return stack.node();
}

/** The node of a candidate in the directory `node`; null for a whiteout. */
export function nodeOf(node: readonly LocatedDirectory[], { entries }: Candidate): Node | null {
  const stack = new OverlayStack();
  for (const { at, entry } of entries) stack.add((node[at] as LocatedDirectory).layer, entry);
  return stack.node();
}

/** The same directories without metadata: a walk may hold thousands of them. */
export function withoutMetadata(directories: readonly LocatedDirectory[]): LocatedDirectory[] {
  return directories.map(({ layer, entry: { offsets } }) => ({ layer, entry: { offsets } }));
}

/** Number of levels of a walk, counted from the deepest, that keep their pages of entries. */
const READING_LEVELS_COUNT_MAX = 16;

/** A directory that a walk is in. */
export interface Level<Directory> {
  readonly directory: Directory;
  readonly names: MergedNames;
}

/** The directories that a walk is in, deepest last. Levels far above the deepest keep no entries in memory. */
export class WalkLevels<Directory> {
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
 * Every name in any of `directories`, ordered by bytes, beginning after `after`. The memory use does not depend on the
 * size of the directories, and a larger `depth` bounds that of a whole walk. Yields to the event loop.
 */
export class MergedNames {
  readonly #tools: MergeTools;
  /** directories to search, topmost first */
  readonly directories: readonly LocatedDirectory[];
  readonly #pageCount: number;
  #after: ByteString | null;
  #queue: ReaderQueue | null = null;
  /** readers outside the queue: those of the last name, or, at the beginning, all */
  #pendingReaders: DirectoryReader[] = [];

  constructor(
    tools: MergeTools,
    directories: readonly LocatedDirectory[],
    { after, depth }: { readonly after: ByteString | null; readonly depth: number },
  ) {
    this.#tools = tools;
    this.directories = withoutMetadata(directories);
    const pages = LIST_PAGES_COUNT_MAX / 2 ** Math.min(depth, PAGE_HALVINGS_COUNT_MAX);
    this.#pageCount = Math.max(PAGE_COUNT_MIN, Math.min(LIST_PAGE_COUNT, Math.floor(pages / directories.length)));
    this.#after = after;
  }

  /** The next name and the layers that have it; null at the end. It is a promise only when it must yield. */
  next(): Candidate | null | Promise<Candidate | null> {
    const { pacer } = this.#tools;
    const queue = this.#queue ?? this.#begin();
    for (let reader = this.#pendingReaders.at(-1); reader !== undefined; reader = this.#pendingReaders.at(-1)) {
      if (pacer.shouldYield()) return this.#nextPaced();
      queue.add(reader);
      this.#pendingReaders.pop();
    }
    return this.#first(queue);
  }

  async #nextPaced(): Promise<Candidate | null> {
    await this.#tools.pacer.yield();
    return await this.next();
  }

  #first(queue: ReaderQueue): Candidate | null {
    this.#pendingReaders = queue.takeFirst();
    const name = this.#pendingReaders[0]?.peek()?.name;
    if (name === undefined) return null;
    const entries = this.#pendingReaders.map((reader) => ({ at: reader.at, entry: reader.peek() as LayerEntry }));
    for (const reader of this.#pendingReaders) reader.skip();
    this.#after = name;
    return { name, entries };
  }

  /** Drops the pages that were read; `next` reads them again. */
  suspend(): void {
    this.#queue = null;
    this.#pendingReaders = [];
  }

  #begin(): ReaderQueue {
    const { open } = this.#tools;
    this.#pendingReaders = this.directories.map(
      (directory, at) => new DirectoryReader(open, { directory, at }, this.#after, this.#pageCount),
    );
    this.#queue = new ReaderQueue();
    return this.#queue;
  }
}

/** Readers ordered by their current names, and by their positions for equal names. */
class ReaderQueue {
  /** a binary heap */
  readonly #readers: DirectoryReader[] = [];

  /** Adds a reader, unless it is at its end. */
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

  /** Removes all readers whose current name is the first one. */
  takeFirst(): DirectoryReader[] {
    const readers: DirectoryReader[] = [];
    const name = this.#readers[0]?.peek()?.name;
    while (name !== undefined && this.#readers[0]?.peek()?.name === name) readers.push(this.#take());
    return readers;
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

/** Compares readers that are not at their ends. */
function isBefore(a: DirectoryReader, b: DirectoryReader | undefined): boolean {
  const [first, second] = [a.peek()?.name ?? "", b?.peek()?.name ?? ""];
  return first === second ? a.at < (b?.at ?? 0) : first < second;
}

/** Smallest page of a reader, in entries. */
const PAGE_COUNT_MIN = 4;
/** Number of levels after which the pages of a walk are no longer halved. */
const PAGE_HALVINGS_COUNT_MAX = 8;

/** The children of a directory in one layer, read page by page. */
class DirectoryReader {
  /** position of the directory among those merged */
  readonly at: number;
  readonly #open: OpenLayers;
  readonly #directory: LocatedDirectory;
  readonly #pageCount: number;
  #page: readonly LayerEntry[] = [];
  #next = 0;
  #after: ByteString | null;
  #isLastPage = false;

  constructor(
    open: OpenLayers,
    { directory, at }: { readonly directory: LocatedDirectory; readonly at: number },
    after: ByteString | null,
    pageCount: number,
  ) {
    this.#open = open;
    this.#directory = directory;
    this.at = at;
    this.#after = after;
    this.#pageCount = pageCount;
  }

  /** True when `peek` must read the disk. */
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
    const { layer, entry } = this.#directory;
    this.#page = this.#open.readIndex(layer, (index) => index.children(entry, this.#after, this.#pageCount));
    this.#next = 0;
    this.#isLastPage = this.#page.length < this.#pageCount;
    this.#after = this.#page.at(-1)?.name ?? this.#after;
  }
}
