import type { DiffChange } from "../../domain/image.ts";
import type { ByteString, GuestPath } from "../../domain/tree/guest-path.ts";
import { DIFF_PATHS_BYTES_MAX } from "../limits.ts";
import type { Cancellation } from "../pacer.ts";
import {
  type Candidate,
  childOf,
  type Level,
  type LocatedDirectory,
  type LocatedEntry,
  MergedNames,
  type MergeTools,
  mergeTools,
  OverlayStack,
  rootOf,
  WalkLevels,
  withoutMetadata,
} from "./directory-merge.ts";
import type { LayerFiles, OpenLayers } from "./open-layers.ts";

/** A path at which two images differ. */
export interface Difference {
  readonly path: GuestPath;
  readonly change: DiffChange;
  /** the entry in the new image, or null */
  readonly now: LocatedEntry | null;
  /** the entry in the old image, or null */
  readonly before: LocatedEntry | null;
}

/** The same path in both images. A side is empty when the path does not exist there. */
export interface Pair<P = LocatedEntry> {
  readonly now: readonly P[];
  readonly before: readonly P[];
}

/** A directory that the walk is in. */
interface Directory {
  /** prefix of the paths of its contents */
  readonly prefix: string;
  readonly pair: Pair<LocatedDirectory>;
}

/** The layers of two images, lowest first; empty for an image without layers. */
export interface ComparedLayers {
  readonly now: readonly LayerFiles[];
  readonly before: readonly LayerFiles[];
  /** true when one image was made from the other: if each has layers of its own, they are copies of one disk at two times */
  readonly isOneLine?: boolean;
}

/**
 * The paths at which `now` differs from `before`, beginning after the path `after`: directories before their contents, and
 * siblings ordered by the bytes of their names. Reads only indexes, and skips what both images share.
 *
 * A file counts as changed when it was written again or when its metadata differ. Files with equal metadata count as equal in
 * images without a common layer, and in two saved states of one running sandbox, both of which have all files that it wrote. A
 * directory counts as changed when its mode, owner or extended attributes differ; its contents are reported separately.
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

/** Limits of one page of differences. */
export interface DiffBounds {
  readonly after: GuestPath | null;
  /** limit of differences */
  readonly limit: number;
  /** time after which the page ends, in `milliseconds`; comparing similar images may take far longer */
  readonly msMax: number;
  /** ends the comparison */
  readonly cancellation: Cancellation | null;
}

/** A page of `imageDiff`. */
export interface DiffPage {
  readonly differences: readonly Difference[];
  /** the path after which the next page begins; null at the end */
  readonly next: GuestPath | null;
}

/** The differences after `after`, within the limits. A page that reached the time limit may be empty. */
export async function diffPage(
  layers: ComparedLayers,
  { after, limit, msMax, cancellation }: DiffBounds,
  open: OpenLayers,
): Promise<DiffPage> {
  const deadline = performance.now() + msMax;
  const differences: Difference[] = [];
  let pathBytes = 0;
  let last: GuestPath | null = after;
  for await (const { path, difference } of new ImageDiff(layers, mergeTools(open, cancellation)).run(after)) {
    if (difference !== null) {
      if (differences.length === limit || pathBytes > DIFF_PATHS_BYTES_MAX) return { differences, next: last };
      differences.push(difference);
      pathBytes += path.length;
    }
    last = path;
    if (performance.now() > deadline) return { differences, next: last };
  }
  return { differences, next: null };
}

/** A path that was compared. */
interface ComparedPath {
  readonly path: GuestPath;
  /** null when both images are equal there */
  readonly difference: Difference | null;
}

/** The comparison of two images. */
export class ImageDiff {
  readonly #layers: ComparedLayers;
  readonly #tools: MergeTools;
  /** the images have the same base layer, and a file in their other layers was written again */
  readonly #areRelated: boolean;

  constructor(layers: ComparedLayers, tools: MergeTools) {
    this.#layers = layers;
    this.#tools = tools;
    const { now, before, isOneLine = false } = layers;
    const haveSame = (at: number) => now[at] !== undefined && now[at].index === before[at]?.index;
    this.#areRelated = haveSame(0) && (!isOneLine || haveSame(Math.min(now.length, before.length) - 1));
  }

  /** True when only layers above those that both images share can make them differ. */
  get areRelated(): boolean {
    return this.#areRelated;
  }

  async root(): Promise<Pair> {
    return {
      now: await rootOf(this.#tools, this.#layers.now.toReversed()),
      before: await rootOf(this.#tools, this.#layers.before.toReversed()),
    };
  }

  /** The entry `name` of a directory in both images; a side is empty where the directory is none. */
  async child(pair: Pair, name: ByteString): Promise<Pair> {
    const now = pair.now[0]?.entry.type === "d" ? pair.now : [];
    const before = pair.before[0]?.entry.type === "d" ? pair.before : [];
    return {
      now: (await childOf(this.#tools, now, name)) ?? [],
      before: (await childOf(this.#tools, before, name)) ?? [],
    };
  }

  /** Whether anything below a directory differs. */
  async differsBelow(path: GuestPath, pair: Pair): Promise<boolean> {
    const below = directoriesOf(pair);
    if (below === null) return false;
    const levels = new WalkLevels<Directory>();
    levels.push(this.#level(path === "/" ? "/" : `${path}/`, below, null, 0));
    for await (const { difference } of this.#walk(levels)) if (difference !== null) return true;
    return false;
  }

  async *run(after: GuestPath | null): AsyncGenerator<ComparedPath, void, undefined> {
    const root = await this.root();
    if (after === null) yield { path: "/" as GuestPath, difference: this.compare("/" as GuestPath, root) };
    yield* this.#walk(await this.#resume(root, after));
  }

  async *#walk(levels: WalkLevels<Directory>): AsyncGenerator<ComparedPath, void, undefined> {
    for (let level = levels.top(); level !== undefined; level = levels.top()) {
      const candidate = await level.names.next();
      if (candidate === null) {
        levels.pop();
        continue;
      }
      const pair = await this.#childPair(level.directory.pair, candidate);
      const path = `${level.directory.prefix}${candidate.name}` as GuestPath;
      yield { path, difference: this.compare(path, pair) };
      const below = directoriesOf(pair);
      if (below !== null) levels.push(this.#level(`${path}/`, below, null, levels.count));
    }
  }

  /** The levels of a walk that has just passed `after`. */
  async #resume(root: Pair, after: GuestPath | null): Promise<WalkLevels<Directory>> {
    const names = (after ?? "").split("/").filter((name) => name !== "") as ByteString[];
    const levels = new WalkLevels<Directory>();
    let pair = directoriesOf(root);
    let prefix = "/";
    for (const name of [...names, null]) {
      if (pair === null) break;
      levels.push(this.#level(prefix, pair, name, levels.count));
      if (name === null) break;
      pair = directoriesOf(await this.child(pair, name));
      prefix += `${name}/`;
    }
    return levels;
  }

  /** Compares a directory. A name that only shared directories have is equal in both images. */
  #level(prefix: string, pair: Pair, after: ByteString | null, depth: number): Level<Directory> {
    const { nowTop, beforeTop } = split(pair);
    const names = new MergedNames(this.#tools, [...nowTop, ...beforeTop], { after, depth });
    return {
      directory: { prefix, pair: { now: withoutMetadata(pair.now), before: withoutMetadata(pair.before) } },
      names,
    };
  }

  async #childPair(pair: Pair<LocatedDirectory>, { name, entries }: Candidate): Promise<Pair> {
    const { nowTop, beforeTop, shared } = split(pair);
    const now = new OverlayStack();
    const before = new OverlayStack();
    for (const { at, entry } of entries) {
      if (at < nowTop.length) now.add((nowTop[at] as LocatedDirectory).layer, entry);
      else before.add((beforeTop[at - nowTop.length] as LocatedDirectory).layer, entry);
    }
    for (const stack of [now, before]) await stack.lookUp(this.#tools, shared, name);
    return { now: now.node() ?? [], before: before.node() ?? [] };
  }

  /** How both images differ at a path; null when they are equal there. Entries below a directory do not count. */
  compare(path: GuestPath, pair: Pair): Difference | null {
    const now = pair.now[0] ?? null;
    const before = pair.before[0] ?? null;
    if (now === null) return before === null ? null : { path, change: "removed", now, before };
    if (before === null) return { path, change: "added", now, before };
    return this.#isSame(now, before) ? null : { path, change: "changed", now, before };
  }

  #isSame(now: LocatedEntry, before: LocatedEntry): boolean {
    if (isSameEntry(now, before)) return true;
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

  #haveSameXattrs(now: LocatedEntry, before: LocatedEntry): boolean {
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

  #xattrs(located: LocatedEntry): Map<string, Uint8Array> {
    using lease = this.#tools.open.acquire(located.layer);
    const pairs = lease.index.xattrs(located.entry);
    return new Map(pairs.map(({ name, value }) => [name, value]));
  }
}

/** The directories in which the walk continues below a path; null when both images share them, or have none. */
function directoriesOf(pair: Pair): Pair | null {
  const now = pair.now[0]?.entry.type === "d" ? pair.now : [];
  const before = pair.before[0]?.entry.type === "d" ? pair.before : [];
  const { nowTop, beforeTop } = split({ now, before });
  return nowTop.length + beforeTop.length === 0 ? null : { now, before };
}

/** True when a directory of `before` was removed, and a new one made in its place. Holds for related images. */
export function isMadeAnew({ now, before }: Pair): boolean {
  if (now[0]?.entry.type !== "d" || before[0]?.entry.type !== "d") return false;
  return split({ now, before }).shared.length === 0;
}

/** Separates the directories of only one image from the lower ones that both images share. */
function split<P extends LocatedDirectory>({
  now,
  before,
}: Pair<P>): {
  readonly nowTop: readonly P[];
  readonly beforeTop: readonly P[];
  readonly shared: readonly P[];
} {
  let count = 0;
  while (count < Math.min(now.length, before.length)) {
    if (!isSameEntry(now[now.length - 1 - count] as P, before[before.length - 1 - count] as P)) break;
    count++;
  }
  return {
    nowTop: now.slice(0, now.length - count),
    beforeTop: before.slice(0, before.length - count),
    shared: now.slice(now.length - count),
  };
}

function isSameEntry(a: LocatedDirectory, b: LocatedDirectory): boolean {
  // The offset is unique for each record of an index.
  return a.layer.index === b.layer.index && a.entry.offsets.xattrsOffset === b.entry.offsets.xattrsOffset;
}
