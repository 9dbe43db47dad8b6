import { setImmediate } from "node:timers/promises";
import { ApiError } from "../domain/errors.ts";
import { type ByteString, displayName, type GuestPath } from "../domain/guest-path.ts";
import type { Entry } from "../domain/listing.ts";
import { extentChunks, locateExtents, readExtents } from "./extent-stream.ts";
import type { LayerEntry } from "./layer-index.ts";
import { LIST_PAGE_COUNT, SYMLINK_HOPS_MAX } from "./limits.ts";
import { type LayerFiles, type OpenLayers, sharedOpenLayers } from "./open-layers.ts";

/** An entry that is there: whiteouts are resolved. */
type ImageEntry = LayerEntry & Entry;

/** What one layer has at a path. */
interface Place {
  readonly layer: LayerFiles;
  readonly entry: ImageEntry;
}

/** What is visible at a path: the topmost entry and, for a directory, those of lower layers that merge into it. */
type Node = readonly [Place, ...Place[]];

/** An entry with its place in the image, free of symlinks. */
export interface ResolvedEntry extends Entry {
  readonly path: GuestPath;
  readonly node: Node;
}

/**
 * The file system of an image as a guest would see it: overlayfs' merge of its layers, read from their indexes
 * and disks without any mount. It holds nothing open between calls.
 */
export class ImageTree {
  /** topmost first */
  readonly #layers: readonly LayerFiles[];
  readonly #open: OpenLayers;

  /** `layers` is in the order of `layerChain`: the lowest first, at least one. */
  constructor(layers: readonly LayerFiles[], open: OpenLayers = sharedOpenLayers) {
    if (layers.length === 0) throw new RangeError("an image has at least one layer");
    this.#layers = layers.toReversed();
    this.#open = open;
  }

  /**
   * Looks a path up inside the image. Symlinks on the way are followed, a symlink at the end only with `follow`.
   * @throws ApiError `not_found`, or `invalid_path` for more than 40 symlinks
   */
  stat(path: GuestPath, options: { readonly follow: boolean }): ResolvedEntry {
    return new Resolution(this.#root(), path, options.follow, (node, name) => this.#child(node, name)).result();
  }

  /**
   * The entries of a directory, by the bytes of their names; symlinks are followed. Errors of the path are
   * thrown at once. Memory does not grow with the directory, and the event loop goes on between pages.
   * @throws ApiError `not_found`, or `invalid_path` when it is not a directory
   */
  list(path: GuestPath): AsyncGenerator<Entry, void, undefined> {
    const { node, type } = this.stat(path, { follow: true });
    if (type !== "d") throw new ApiError("invalid_path", "not a directory", { path: displayName(path) });
    return mergedEntries(node.map((place) => new DirectoryReader(this.#open, place)));
  }

  /**
   * The bytes `[start, end)` of a file; holes are zeros. Nothing is opened before the first read, and a cancel
   * closes everything.
   * @throws ApiError `invalid_path` when it is not a regular file
   */
  read(
    resolved: ResolvedEntry,
    range: { readonly start: number; readonly end: number } = { start: 0, end: resolved.size },
  ): ReadableStream<Uint8Array<ArrayBuffer>> {
    const { layer, entry } = this.#fileAt(resolved, range);
    return readExtents(() => this.#open.acquire(layer), entry, range);
  }

  /**
   * The bytes `[start, end)` of a file, as `read` gives them, but a chunk is good only until the next one is asked
   * for: a long download then leaves no garbage.
   * @throws ApiError `invalid_path` when it is not a regular file
   */
  chunks(
    resolved: ResolvedEntry,
    range: { readonly start: number; readonly end: number },
  ): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
    const { layer, entry } = this.#fileAt(resolved, range);
    return extentChunks(() => this.#open.acquire(layer), entry, range);
  }

  /**
   * Where the bytes `[start, end)` of a file are in one piece on the disk of a layer; null when they are not.
   * @throws ApiError `invalid_path` when it is not a regular file
   */
  locate(
    resolved: ResolvedEntry,
    range: { readonly start: number; readonly end: number },
  ): { readonly disk: string; readonly start: number } | null {
    const { layer, entry } = this.#fileAt(resolved, range);
    using lease = this.#open.acquire(layer);
    const start = locateExtents(lease, entry, range);
    return start === null ? null : { disk: layer.disk, start };
  }

  #fileAt(resolved: ResolvedEntry, { start, end }: { readonly start: number; readonly end: number }): Place {
    if (resolved.type !== "f") {
      throw new ApiError("invalid_path", "not a regular file", { path: displayName(resolved.path) });
    }
    if (start < 0 || start > end || end > resolved.size) throw new RangeError(`range ${start} to ${end}`);
    return resolved.node[0];
  }

  /** The roots always merge: no mark of a layer's root hides those below. */
  #root(): Node {
    const places = this.#layers.map((layer): Place => {
      using lease = this.#open.acquire(layer);
      return { layer, entry: lease.index.root() as ImageEntry };
    });
    return places as unknown as Node;
  }

  /** What the directory `node` shows under `name`, as overlayfs looks it up: from the top down. */
  #child(node: Node, name: ByteString): Node | null {
    const places: Place[] = [];
    for (const { layer, entry: directory } of node) {
      using lease = this.#open.acquire(layer);
      const entry = lease.index.child(directory, name);
      if (entry === null) continue;
      // A whiteout or anything else that is no directory ends a merge; on top it is what there is.
      if (entry.type === "w") break;
      if (entry.type !== "d" && places.length > 0) break;
      places.push({ layer, entry: entry as ImageEntry });
      if (entry.type !== "d" || entry.opaque) break;
    }
    const [top, ...lower] = places;
    return top === undefined ? null : [top, ...lower];
  }
}

/** One walk down a path, component by component, as the kernel does it with the image as its root. */
class Resolution {
  readonly #path: GuestPath;
  readonly #follow: boolean;
  readonly #child: (node: Node, name: ByteString) => Node | null;
  /** from the root to the current directory, without symlinks */
  readonly #nodes: [Node, ...Node[]];
  readonly #names: string[] = [];
  /** components that are left, the next one last */
  readonly #pending: string[] = [];
  #hopCount = 0;

  constructor(root: Node, path: GuestPath, follow: boolean, child: (node: Node, name: ByteString) => Node | null) {
    this.#path = path;
    this.#follow = follow;
    this.#child = child;
    this.#nodes = [root];
    this.#push(path);
  }

  result(): ResolvedEntry {
    for (let name = this.#pending.pop(); name !== undefined; name = this.#pending.pop()) this.#step(name);
    const node = this.#current();
    const path = `/${this.#names.join("/")}` as GuestPath;
    return { ...node[0].entry, path, node };
  }

  #current(): Node {
    return this.#nodes[this.#nodes.length - 1] as Node;
  }

  #step(name: string): void {
    const current = this.#current();
    if (current[0].entry.type !== "d") this.#missing();
    if (name === "..") {
      // Above the root of the image there is nothing else.
      if (this.#nodes.length > 1) this.#nodes.pop();
      this.#names.pop();
      return;
    }
    const child = this.#child(current, name as ByteString);
    if (child === null) this.#missing();
    const { type, target } = child[0].entry;
    if (type === "l" && (this.#follow || this.#pending.length > 0)) {
      this.#followLink(target);
      return;
    }
    this.#nodes.push(child);
    this.#names.push(name);
  }

  #followLink(target: ByteString): void {
    this.#hopCount++;
    if (this.#hopCount > SYMLINK_HOPS_MAX) {
      throw new ApiError("invalid_path", "too many levels of symbolic links", { path: displayName(this.#path) });
    }
    if (target.startsWith("/")) {
      this.#nodes.length = 1;
      this.#names.length = 0;
    }
    this.#push(target);
  }

  #push(path: ByteString): void {
    const names = path.split("/").filter((name) => name !== "" && name !== ".");
    for (const name of names.toReversed()) this.#pending.push(name);
  }

  #missing(): never {
    throw new ApiError("not_found", "no such file or directory", { path: displayName(this.#path) });
  }
}

/** The children that one layer has, a page at a time. */
class DirectoryReader {
  readonly #open: OpenLayers;
  readonly #place: Place;
  #page: LayerEntry[] = [];
  #at = 0;
  #after: ByteString | null = null;
  #isLastPage = false;

  constructor(open: OpenLayers, place: Place) {
    this.#open = open;
    this.#place = place;
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
    this.#page = lease.index.children(this.#place.entry, this.#after, LIST_PAGE_COUNT);
    this.#at = 0;
    this.#isLastPage = this.#page.length < LIST_PAGE_COUNT;
    this.#after = this.#page.at(-1)?.name ?? this.#after;
  }
}

/** Merges sorted readers, the topmost first: of one name the topmost entry counts, and a whiteout hides it. */
async function* mergedEntries(readers: readonly DirectoryReader[]): AsyncGenerator<Entry, void, undefined> {
  for (let isFirst = true; ; isFirst = false) {
    if (!isFirst && readers.some((reader) => reader.isEmpty)) await setImmediate();
    let first: LayerEntry | null = null;
    for (const reader of readers) {
      const entry = reader.peek();
      if (entry !== null && (first === null || entry.name < first.name)) first = entry;
    }
    if (first === null) return;
    for (const reader of readers) {
      if (reader.peek()?.name === first.name) reader.skip();
    }
    if (isEntry(first)) yield first;
  }
}

function isEntry(entry: LayerEntry): entry is ImageEntry {
  return entry.type !== "w";
}
