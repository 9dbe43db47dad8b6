import type { ByteRange } from "../../domain/byte-range.ts";
import { ApiError } from "../../domain/errors.ts";
import { type ByteString, displayName, type GuestPath } from "../../domain/guest-path.ts";
import type { Entry } from "../../domain/listing.ts";
import { LinkTable } from "../archive/archive-links.ts";
import type { LayerFiles, LayerLease, OpenLayers } from "../layers/open-layers.ts";
import { Pacer, type Wanted } from "../pacer.ts";
import {
  Levels,
  type MergeTools,
  mergeTools,
  Names,
  type Node,
  nodeOf,
  type Place,
  rootOf,
} from "./directory-merge.ts";
import { extentChunks, locateExtents } from "./extent-stream.ts";
import { resolvePath } from "./resolution.ts";

/** An entry with its place in the image, free of symlinks. */
export interface ResolvedEntry extends Entry {
  readonly path: GuestPath;
  readonly node: Node;
}

/**
 * The file system of an image as a guest would see it: overlayfs' merge of its layers, read from their indexes
 * and disks without any mount. It holds nothing open between calls, and the event loop goes on during each.
 */
export class ImageTree {
  /** topmost first */
  readonly #layers: readonly LayerFiles[];
  readonly #open: OpenLayers;
  readonly #wanted: Wanted | null;

  /**
   * @param layers in the order of `layerChain`: the lowest first, at least one
   * @param wanted ends everything that is done with the tree as soon as it throws
   */
  constructor(layers: readonly LayerFiles[], open: OpenLayers, wanted: Wanted | null = null) {
    if (layers.length === 0) throw new RangeError("an image has at least one layer");
    this.#layers = layers.toReversed();
    this.#open = open;
    this.#wanted = wanted;
  }

  /**
   * Looks a path up inside the image. Symlinks on the way are followed, a symlink at the end only with `follow`.
   * @throws ApiError `not_found`, or `invalid_path` for more than 40 symlinks, or what takes as long as those
   */
  async stat(path: GuestPath, options: { readonly follow: boolean }): Promise<ResolvedEntry> {
    const tools = this.#tools();
    const root = (await rootOf(tools, this.#layers)) as unknown as Node;
    const { path: found, node } = await resolvePath(tools, root, path, options);
    return { ...node[0].entry, path: found, node };
  }

  /**
   * The entries of a directory, by the bytes of their names; symlinks are followed. Errors of the path come before
   * the first entry. Memory does not grow with the directory.
   * @throws ApiError `not_found`, or `invalid_path` when it is not a directory
   */
  async list(path: GuestPath): Promise<AsyncGenerator<Entry, void, undefined>> {
    const { node, type } = await this.stat(path, { follow: true });
    if (type !== "d") throw new ApiError("invalid_path", "not a directory", { path: displayName(path) });
    return entriesOf(this.#tools(), node);
  }

  /**
   * What is at `resolved` and below it, directories before what is in them and siblings by the bytes of their names;
   * no symlink is followed. Memory does not grow with the tree.
   */
  walk(resolved: ResolvedEntry): AsyncGenerator<WalkedEntry, void, undefined> {
    return walkNodes(this.#tools(), resolved.node);
  }

  /** For one archive of what is in the tree. */
  links(): LinkTable {
    return new LinkTable(this.#open.linkBudget);
  }

  #tools(): MergeTools {
    return mergeTools(this.#open, this.#wanted);
  }

  /** A lease of the layer that has the entry's content, for as long as it is not disposed. */
  lease(place: Place): LayerLease {
    return this.#open.acquire(place.layer);
  }

  /**
   * The bytes `[start, end)` of a file, all in memory; holes are zeros.
   * @throws ApiError `invalid_path` when it is not a regular file
   */
  async read(
    resolved: ResolvedEntry,
    range: ByteRange = { start: 0, end: resolved.size },
  ): Promise<Buffer<ArrayBuffer>> {
    const bytes = Buffer.allocUnsafeSlow(range.end - range.start);
    let filled = 0;
    for await (const chunk of this.chunks(resolved, range)) {
      bytes.set(chunk, filled);
      filled += chunk.byteLength;
    }
    return bytes;
  }

  /**
   * The bytes `[start, end)` of a file; holes are zeros. Nothing is opened before the first chunk is asked for. A chunk is
   * valid only until the next one is asked for: a long download then leaves no garbage.
   * @throws ApiError `invalid_path` when it is not a regular file
   */
  chunks(
    resolved: ResolvedEntry,
    range: ByteRange = { start: 0, end: resolved.size },
  ): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
    const { layer, entry } = this.#fileAt(resolved, range);
    return extentChunks(() => this.#open.acquire(layer), entry, range);
  }

  /**
   * Where the bytes `[start, end)` of a file are in one piece on the disk of a layer; null when they are not.
   * @throws ApiError `invalid_path` when it is not a regular file
   */
  async locate(
    resolved: ResolvedEntry,
    range: ByteRange,
  ): Promise<{ readonly disk: string; readonly start: number } | null> {
    const { layer, entry } = this.#fileAt(resolved, range);
    using lease = this.#open.acquire(layer);
    const start = await locateExtents(lease, entry, range, new Pacer(this.#wanted));
    return start === null ? null : { disk: layer.disk, start };
  }

  #fileAt(resolved: ResolvedEntry, { start, end }: ByteRange): Place {
    if (resolved.type !== "f") {
      throw new ApiError("invalid_path", "not a regular file", { path: displayName(resolved.path) });
    }
    if (start < 0 || start > end || end > resolved.size) throw new RangeError(`range ${start} to ${end}`);
    return resolved.node[0];
  }
}

/** An entry that a walk came by. */
export interface WalkedEntry {
  /** relative to where the walk began, which is the empty path */
  readonly path: ByteString;
  readonly place: Place;
}

async function* entriesOf(tools: MergeTools, node: Node): AsyncGenerator<Entry, void, undefined> {
  const names = new Names(tools, node, { after: null, depth: 0 });
  for (let found = await names.next(); found !== null; found = await names.next()) {
    const child = nodeOf(node, found);
    if (child !== null) yield child[0].entry;
  }
}

async function* walkNodes(tools: MergeTools, start: Node): AsyncGenerator<WalkedEntry, void, undefined> {
  yield { path: "" as ByteString, place: start[0] };
  if (start[0].entry.type !== "d") return;
  /** by the prefix of what is in the directory */
  const levels = new Levels<string>();
  levels.push({ directory: "", names: new Names(tools, start, { after: null, depth: 0 }) });
  for (let level = levels.top(); level !== undefined; level = levels.top()) {
    const found = await level.names.next();
    if (found === null) {
      levels.pop();
      continue;
    }
    const node = nodeOf(level.names.directories, found);
    if (node === null) continue;
    const [place] = node;
    const path = `${level.directory}${place.entry.name}` as ByteString;
    yield { path, place };
    if (place.entry.type !== "d") continue;
    levels.push({ directory: `${path}/`, names: new Names(tools, node, { after: null, depth: levels.count }) });
  }
}
