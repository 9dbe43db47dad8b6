import { ApiError } from "../domain/errors.ts";
import { type ByteString, displayName, type GuestPath } from "../domain/guest-path.ts";
import type { Entry } from "../domain/listing.ts";
import { childOf, childrenOf, type ImageEntry, type Node, type Place } from "./directory-merge.ts";
import { extentChunks, locateExtents, readExtents } from "./extent-stream.ts";
import { SYMLINK_HOPS_MAX } from "./limits.ts";
import { type LayerFiles, type LayerLease, type OpenLayers, sharedOpenLayers } from "./open-layers.ts";

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
    return new Resolution(this.#root(), path, options.follow, (node, name) => childOf(this.#open, node, name)).result();
  }

  /**
   * The entries of a directory, by the bytes of their names; symlinks are followed. Errors of the path are
   * thrown at once. Memory does not grow with the directory, and the event loop goes on between pages.
   * @throws ApiError `not_found`, or `invalid_path` when it is not a directory
   */
  list(path: GuestPath): AsyncGenerator<Entry, void, undefined> {
    const { node, type } = this.stat(path, { follow: true });
    if (type !== "d") throw new ApiError("invalid_path", "not a directory", { path: displayName(path) });
    return entriesOf(childrenOf(this.#open, node));
  }

  /**
   * What is at `resolved` and below it, directories before what is in them and siblings by the bytes of their names;
   * no symlink is followed. Memory does not grow with the tree.
   */
  walk(resolved: ResolvedEntry): AsyncGenerator<WalkedEntry, void, undefined> {
    return walkNodes(this.#open, resolved.node);
  }

  /** A lease of the layer that has the entry's content, for as long as it is not disposed. */
  lease(place: Place): LayerLease {
    return this.#open.acquire(place.layer);
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
    return rootOf(this.#layers, this.#open) as unknown as Node;
  }
}

/** The roots of layers, the topmost first. */
export function rootOf(layers: readonly LayerFiles[], open: OpenLayers): Place[] {
  return layers.map((layer): Place => ({ layer, entry: open.look(layer, (index) => index.root()) as ImageEntry }));
}

/** An entry that a walk came by. */
export interface WalkedEntry {
  /** relative to where the walk began, which is the empty path */
  readonly path: ByteString;
  readonly place: Place;
}

async function* entriesOf(nodes: AsyncIterable<Node>): AsyncGenerator<Entry, void, undefined> {
  for await (const [{ entry }] of nodes) yield entry;
}

async function* walkNodes(open: OpenLayers, start: Node): AsyncGenerator<WalkedEntry, void, undefined> {
  yield { path: "" as ByteString, place: start[0] };
  if (start[0].entry.type !== "d") return;
  const levels = [{ prefix: "", nodes: childrenOf(open, start) }];
  for (let level = levels.at(-1); level !== undefined; level = levels.at(-1)) {
    const step = await level.nodes.next();
    if (step.done === true) {
      levels.pop();
      continue;
    }
    const [place] = step.value;
    const path = `${level.prefix}${place.entry.name}` as ByteString;
    yield { path, place };
    if (place.entry.type === "d") {
      levels.push({ prefix: `${path}/`, nodes: childrenOf(open, step.value, levels.length) });
    }
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
