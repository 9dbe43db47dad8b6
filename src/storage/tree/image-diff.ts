import type { ByteString, GuestPath } from "../../domain/guest-path.ts";
import type { DiffChange } from "../../domain/image-diff.ts";
import type { LayerFiles, OpenLayers } from "../layers/open-layers.ts";
import { DIFF_PATHS_BYTES_MAX } from "../limits.ts";
import type { Wanted } from "../pacer.ts";
import {
  bare,
  type Candidate,
  childOf,
  type DirectoryPlace,
  type Level,
  Levels,
  type MergeTools,
  mergeTools,
  Names,
  type Place,
  PlaceStack,
  rootOf,
} from "./directory-merge.ts";

/** A path that two images do not have alike. */
export interface Difference {
  readonly path: GuestPath;
  readonly change: DiffChange;
  /** what the new image has; null when it has nothing */
  readonly now: Place | null;
  /** what the old image has; null when it has nothing */
  readonly before: Place | null;
}

/** The same path in both images; a side is empty where there is nothing. */
interface Pair<P = Place> {
  readonly now: readonly P[];
  readonly before: readonly P[];
}

/** A directory that the walk is in. */
interface Directory {
  /** of the paths of what is in it */
  readonly prefix: string;
  readonly pair: Pair<DirectoryPlace>;
}

/** The layers of two images, the lowest first; an image without any is empty. */
export interface ComparedLayers {
  readonly now: readonly LayerFiles[];
  readonly before: readonly LayerFiles[];
}

/**
 * The paths at which `now` differs from `before`, a directory before what is in it and siblings by the bytes of their
 * names, from the first path behind `after` on. Only indexes are read, and nothing of what both images share.
 *
 * A file counts as changed when it was written again, or when anything that the index says of it differs; in
 * images that share no layer, files of the same metadata count as the same. A directory counts as changed when its
 * mode, owner or extended attributes do; what is in it is told by itself.
 */
export async function* imageDiff(
  layers: ComparedLayers,
  after: GuestPath | null,
  open: OpenLayers,
): AsyncGenerator<Difference, void, undefined> {
  for await (const { difference } of new ImageDiff(layers, mergeTools(open, null)).run(after)) {
    if (difference !== null) yield difference;
  }
}

/** Bounds of one page of differences. */
export interface DiffBounds {
  readonly after: GuestPath | null;
  /** most differences */
  readonly limit: number;
  /** `milliseconds` after which the page ends with what was found; images that are alike may take far longer */
  readonly msMax: number;
  /** ends the comparison as soon as it throws */
  readonly wanted: Wanted | null;
}

/** Some of `imageDiff`. */
export interface DiffPage {
  readonly found: readonly Difference[];
  /** the path that the next page goes on behind; null when there is no more */
  readonly next: GuestPath | null;
}

/** The differences behind `after`, as many as the bounds allow; a page that time has ended may be empty. */
export async function diffPage(
  layers: ComparedLayers,
  { after, limit, msMax, wanted }: DiffBounds,
  open: OpenLayers,
): Promise<DiffPage> {
  const deadline = performance.now() + msMax;
  const found: Difference[] = [];
  let pathBytes = 0;
  let last: GuestPath | null = after;
  for await (const { path, difference } of new ImageDiff(layers, mergeTools(open, wanted)).run(after)) {
    if (difference !== null) {
      if (found.length === limit || pathBytes > DIFF_PATHS_BYTES_MAX) return { found, next: last };
      found.push(difference);
      pathBytes += path.length;
    }
    last = path;
    if (performance.now() > deadline) return { found, next: last };
  }
  return { found, next: null };
}

/** A path that was compared. */
interface Compared {
  readonly path: GuestPath;
  /** null when both images have the same there */
  readonly difference: Difference | null;
}

class ImageDiff {
  readonly #layers: ComparedLayers;
  readonly #tools: MergeTools;
  /** the images share a layer: one came from the other, or both from a third */
  readonly #areRelated: boolean;

  constructor(layers: ComparedLayers, tools: MergeTools) {
    this.#layers = layers;
    this.#tools = tools;
    const { now, before } = layers;
    this.#areRelated = now[0] !== undefined && now[0].index === before[0]?.index;
  }

  async *run(after: GuestPath | null): AsyncGenerator<Compared, void, undefined> {
    const root = {
      now: await rootOf(this.#tools, this.#layers.now.toReversed()),
      before: await rootOf(this.#tools, this.#layers.before.toReversed()),
    };
    if (after === null) yield this.#compared("/" as GuestPath, root);
    const levels = await this.#resume(root, after);
    for (let level = levels.top(); level !== undefined; level = levels.top()) {
      const found = await level.names.next();
      if (found === null) {
        levels.pop();
        continue;
      }
      const pair = await this.#childPair(level.directory.pair, found);
      const path = `${level.directory.prefix}${found.name}` as GuestPath;
      yield this.#compared(path, pair);
      const below = directoriesOf(pair);
      if (below !== null) levels.push(this.#level(`${path}/`, below, null, levels.count));
    }
  }

  /** The levels of a walk that has just come by `after`. */
  async #resume(root: Pair, after: GuestPath | null): Promise<Levels<Directory>> {
    const names = (after ?? "").split("/").filter((name) => name !== "") as ByteString[];
    const levels = new Levels<Directory>();
    let pair = directoriesOf(root);
    let prefix = "/";
    for (const name of [...names, null]) {
      if (pair === null) break;
      levels.push(this.#level(prefix, pair, name, levels.count));
      if (name === null) break;
      const child: Pair = {
        now: (await childOf(this.#tools, pair.now, name)) ?? [],
        before: (await childOf(this.#tools, pair.before, name)) ?? [],
      };
      pair = directoriesOf(child);
      prefix += `${name}/`;
    }
    return levels;
  }

  /** A name that only the shared places have is the same in both images. */
  #level(prefix: string, pair: Pair, after: ByteString | null, depth: number): Level<Directory> {
    const { nowTop, beforeTop } = split(pair);
    const names = new Names(this.#tools, [...nowTop, ...beforeTop], { after, depth });
    return { directory: { prefix, pair: { now: bare(pair.now), before: bare(pair.before) } }, names };
  }

  async #childPair(pair: Pair<DirectoryPlace>, { name, found }: Candidate): Promise<Pair> {
    const { nowTop, beforeTop, shared } = split(pair);
    const now = new PlaceStack();
    const before = new PlaceStack();
    for (const { at, entry } of found) {
      if (at < nowTop.length) now.add((nowTop[at] as DirectoryPlace).layer, entry);
      else before.add((beforeTop[at - nowTop.length] as DirectoryPlace).layer, entry);
    }
    for (const stack of [now, before]) await stack.look(this.#tools, shared, name);
    return { now: now.node() ?? [], before: before.node() ?? [] };
  }

  #compared(path: GuestPath, pair: Pair): Compared {
    return { path, difference: this.#compare(path, pair) };
  }

  #compare(path: GuestPath, pair: Pair): Difference | null {
    const now = pair.now[0] ?? null;
    const before = pair.before[0] ?? null;
    if (now === null) return before === null ? null : { path, change: "removed", now, before };
    if (before === null) return { path, change: "added", now, before };
    return this.#isSame(now, before) ? null : { path, change: "changed", now, before };
  }

  #isSame(now: Place, before: Place): boolean {
    if (isSamePlace(now, before)) return true;
    const a = now.entry;
    const b = before.entry;
    const isDirectory = a.type === "d";
    if (a.type !== b.type || a.mode !== b.mode || a.uid !== b.uid || a.gid !== b.gid) return false;
    if (!this.#haveSameXattrs(now, before)) return false;
    if (isDirectory) return true;
    const isEqual =
      a.size === b.size &&
      a.mtimeSeconds === b.mtimeSeconds &&
      a.mtimeNanoseconds === b.mtimeNanoseconds &&
      a.target === b.target &&
      a.rdevMajor === b.rdevMajor &&
      a.rdevMinor === b.rdevMinor;
    return isEqual && !(this.#areRelated && a.type === "f" && a.size > 0);
  }

  #haveSameXattrs(now: Place, before: Place): boolean {
    if (now.entry.xattrCount !== before.entry.xattrCount) return false;
    if (now.entry.xattrCount === 0) return true;
    const [a, b] = [this.#xattrs(now), this.#xattrs(before)];
    if (a.size !== b.size) return false;
    for (const [name, value] of a) {
      const other = b.get(name);
      if (other === undefined || Buffer.compare(value, other) !== 0) return false;
    }
    return true;
  }

  #xattrs(place: Place): Map<string, Uint8Array> {
    using lease = this.#tools.open.acquire(place.layer);
    const pairs = lease.index.xattrs(place.entry);
    return new Map(pairs.map(({ name, value }) => [name, value]));
  }
}

/** Where the walk goes on below a path, or null where both images have the same, or no directory at all. */
function directoriesOf(pair: Pair): Pair | null {
  const now = pair.now[0]?.entry.type === "d" ? pair.now : [];
  const before = pair.before[0]?.entry.type === "d" ? pair.before : [];
  const { nowTop, beforeTop } = split({ now, before });
  return nowTop.length + beforeTop.length === 0 ? null : { now, before };
}

/** Takes apart what only one image has and what, below that, both have. */
function split<P extends DirectoryPlace>({
  now,
  before,
}: Pair<P>): {
  readonly nowTop: readonly P[];
  readonly beforeTop: readonly P[];
  readonly shared: readonly P[];
} {
  let count = 0;
  while (count < Math.min(now.length, before.length)) {
    if (!isSamePlace(now[now.length - 1 - count] as P, before[before.length - 1 - count] as P)) break;
    count++;
  }
  return {
    nowTop: now.slice(0, now.length - count),
    beforeTop: before.slice(0, before.length - count),
    shared: now.slice(now.length - count),
  };
}

function isSamePlace(a: DirectoryPlace, b: DirectoryPlace): boolean {
  // Every record of an index has a place of its own for what follows it.
  return a.layer.index === b.layer.index && a.entry.place.xattrsOffset === b.entry.place.xattrsOffset;
}
