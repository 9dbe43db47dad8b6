import type { ByteRange } from "../../domain/bytes/byte-range.ts";
import { ApiError } from "../../domain/errors.ts";
import { type ByteString, displayName, type GuestPath } from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";
import { type Cancellation, Pacer } from "../pacer.ts";
import { LinkTable } from "./archive-links.ts";
import {
  type LocatedEntry,
  MergedNames,
  type MergeTools,
  mergeTools,
  type Node,
  nodeOf,
  rootOf,
  WalkLevels,
} from "./directory-merge.ts";
import { extentChunks, locateExtents } from "./extent-stream.ts";
import type { LayerFiles, LayerLease, OpenLayers } from "./open-layers.ts";
import { resolvePath } from "./resolution.ts";

/** Entries of a directory that are read before the first is given. */
const FEW_ENTRIES_COUNT_MAX = 256;

/** An entry and its path in the image, without symlinks. */
export interface ResolvedEntry extends Entry {
  readonly path: GuestPath;
  readonly node: Node;
}

/**
 * The file system of an image as a guest sees it: its layers, merged like overlayfs does, read from their indexes and disks
 * without a mount. It holds no file open between calls, and yields to the event loop.
 */
export class ImageTree {
  /** topmost first */
  readonly #layers: readonly LayerFiles[];
  readonly #open: OpenLayers;
  readonly #cancellation: Cancellation | null;

  /**
   * @param layers like those of `layerChain`: lowest first, at least one
   * @param cancellation ends all work on the tree
   */
  constructor(layers: readonly LayerFiles[], open: OpenLayers, cancellation: Cancellation | null = null) {
    if (layers.length === 0) throw new RangeError("an image has at least one layer");
    this.#layers = layers.toReversed();
    this.#open = open;
    this.#cancellation = cancellation;
  }

  /**
   * Finds a path in the image. Follows symlinks on the way, and a symlink at the end only with `follow`.
   * @throws ApiError `not_found`, or `invalid_path` for more than 40 symlinks or too many components or look-ups
   */
  async stat(path: GuestPath, options: { readonly follow: boolean }): Promise<ResolvedEntry> {
    const tools = this.#tools();
    const root = (await rootOf(tools, this.#layers)) as unknown as Node;
    const { path: realPath, node } = await resolvePath(tools, root, path, options);
    return { ...node[0].entry, path: realPath, node };
  }

  /**
   * The entries of a directory, ordered by the bytes of their names; an array when they are few. Follows symlinks. Errors of
   * the path are thrown before the first entry. The memory use does not depend on the size of the directory.
   * @throws ApiError `not_found`, or `invalid_path` when it is not a directory
   */
  async list(path: GuestPath): Promise<readonly Entry[] | AsyncGenerator<Entry, void, undefined>> {
    const { node, type } = await this.stat(path, { follow: true });
    if (type !== "d") throw new ApiError("invalid_path", "not a directory", { path: displayName(path) });
    const names = new MergedNames(this.#tools(), node, { after: null, depth: 0 });
    const few: Entry[] = [];
    while (few.length < FEW_ENTRIES_COUNT_MAX) {
      const next = names.next();
      // Most names need no wait, and every wait takes longer than a name.
      const candidate = next instanceof Promise ? await next : next;
      if (candidate === null) return few;
      const child = nodeOf(node, candidate);
      if (child !== null) few.push(child[0].entry);
    }
    return entriesAfter(few, names, node);
  }

  /**
   * Walks `resolved` and everything below it: directories before their contents, and siblings ordered by the bytes of their
   * names. Follows no symlinks. The memory use does not depend on the size of the tree.
   * @param enters whether a directory is walked with its contents; otherwise it is left out
   */
  walk(
    resolved: ResolvedEntry,
    enters: (directory: WalkedEntry) => boolean = () => true,
  ): AsyncGenerator<WalkedEntry, void, undefined> {
    return walkNodes(this.#tools(), resolved.node, enters);
  }

  /** A new link table, for one archive. */
  links(): LinkTable {
    return new LinkTable(this.#open.linkBudget);
  }

  #tools(): MergeTools {
    return mergeTools(this.#open, this.#cancellation);
  }

  /** A lease of the layer that contains the entry's content. */
  lease(located: LocatedEntry): LayerLease {
    return this.#open.acquire(located.layer);
  }

  /**
   * The bytes `[start, end)` of a file in one buffer, with zeros for holes.
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
   * The bytes `[start, end)` of a file in chunks, with zeros for holes. The first request opens the file. A chunk is valid
   * until the next one is requested, because a reused buffer leaves no garbage behind a long download.
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
   * The disk and the offset at which the bytes `[start, end)` of a file are contiguous; null when they are not.
   * @throws ApiError `invalid_path` when it is not a regular file
   */
  async locate(
    resolved: ResolvedEntry,
    range: ByteRange,
  ): Promise<{ readonly disk: string; readonly start: number } | null> {
    const { layer, entry } = this.#fileAt(resolved, range);
    using lease = this.#open.acquire(layer);
    const start = await locateExtents(lease, entry, range, new Pacer(this.#cancellation));
    return start === null ? null : { disk: layer.disk, start };
  }

  #fileAt(resolved: ResolvedEntry, { start, end }: ByteRange): LocatedEntry {
    if (resolved.type !== "f") {
      throw new ApiError("invalid_path", "not a regular file", { path: displayName(resolved.path) });
    }
    if (start < 0 || start > end || end > resolved.size) throw new RangeError(`range ${start} to ${end}`);
    return resolved.node[0];
  }
}

/** An entry that a walk has reached. */
export interface WalkedEntry {
  /** relative to the start of the walk, whose own path is empty */
  readonly path: ByteString;
  readonly located: LocatedEntry;
}

/** Entries that were read, and those after them. */
async function* entriesAfter(
  read: readonly Entry[],
  names: MergedNames,
  node: Node,
): AsyncGenerator<Entry, void, undefined> {
  yield* read;
  for (;;) {
    const next = names.next();
    const candidate = next instanceof Promise ? await next : next;
    if (candidate === null) return;
    const child = nodeOf(node, candidate);
    if (child !== null) yield child[0].entry;
  }
}

async function* walkNodes(
  tools: MergeTools,
  start: Node,
  enters: (directory: WalkedEntry) => boolean,
): AsyncGenerator<WalkedEntry, void, undefined> {
  yield { path: "" as ByteString, located: start[0] };
  if (start[0].entry.type !== "d") return;
  /** the directory of a level is the prefix of its contents' paths */
  const levels = new WalkLevels<string>();
  levels.push({ directory: "", names: new MergedNames(tools, start, { after: null, depth: 0 }) });
  for (let level = levels.top(); level !== undefined; level = levels.top()) {
    const candidate = await level.names.next();
    if (candidate === null) {
      levels.pop();
      continue;
    }
    const node = nodeOf(level.names.directories, candidate);
    if (node === null) continue;
    const [located] = node;
    const path = `${level.directory}${located.entry.name}` as ByteString;
    const isDirectory = located.entry.type === "d";
    if (isDirectory && !enters({ path, located })) continue;
    yield { path, located };
    if (!isDirectory) continue;
    levels.push({ directory: `${path}/`, names: new MergedNames(tools, node, { after: null, depth: levels.count }) });
  }
}
