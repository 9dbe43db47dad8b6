import type { ByteString, GuestPath } from "../domain/guest-path.ts";
import type { DiffChange } from "../domain/history.ts";
import { type Candidate, candidatesOf, childOf, type Place, PlaceStack } from "./directory-merge.ts";
import { rootOf } from "./image-tree.ts";
import { type LayerFiles, type OpenLayers, sharedOpenLayers } from "./open-layers.ts";

/** A path that two images do not have alike. */
export interface Difference {
  readonly path: GuestPath;
  readonly change: DiffChange;
  /** what the new image has; null when it has nothing */
  readonly now: Place | null;
  /** what the old image has; null when it has nothing */
  readonly before: Place | null;
}

/** The same directory in both images; a side is empty where there is none. */
interface Pair {
  readonly now: readonly Place[];
  readonly before: readonly Place[];
}

interface Level {
  readonly prefix: string;
  readonly pair: Pair;
  readonly names: AsyncGenerator<Candidate, void, undefined>;
}

/**
 * What `now` has otherwise than `before`, a directory before what is in it and siblings by the bytes of their names,
 * from the first path behind `after` on. Only indexes are read, and of what both images share nothing. Layers are
 * given the lowest first; without any, `before` is empty.
 *
 * A file counts as changed when it was written again, or when anything that the index says of it differs; in
 * images that share no layer, files of the same metadata count as the same. A directory counts as changed when its
 * mode, owner or extended attributes do; what is in it is told by itself.
 */
export async function* imageDiff(
  layers: { readonly now: readonly LayerFiles[]; readonly before: readonly LayerFiles[] },
  after: GuestPath | null,
  open: OpenLayers = sharedOpenLayers,
): AsyncGenerator<Difference, void, undefined> {
  yield* new ImageDiff(layers, open).run(after);
}

class ImageDiff {
  readonly #open: OpenLayers;
  readonly #root: Pair;
  /** the images share a layer: one came from the other, or both from a third */
  readonly #areRelated: boolean;

  constructor(
    layers: { readonly now: readonly LayerFiles[]; readonly before: readonly LayerFiles[] },
    open: OpenLayers,
  ) {
    this.#open = open;
    const { now, before } = layers;
    this.#root = { now: rootOf(now.toReversed(), open), before: rootOf(before.toReversed(), open) };
    this.#areRelated = now[0] !== undefined && now[0].index === before[0]?.index;
  }

  async *run(after: GuestPath | null): AsyncGenerator<Difference, void, undefined> {
    if (after === null) {
      const difference = this.#compare("/" as GuestPath, this.#root);
      if (difference !== null) yield difference;
    }
    const levels = this.#resume(after);
    for (let level = levels.at(-1); level !== undefined; level = levels.at(-1)) {
      const step = await level.names.next();
      if (step.done === true) {
        levels.pop();
        continue;
      }
      const pair = this.#childPair(level.pair, step.value);
      const path = `${level.prefix}${step.value.name}` as GuestPath;
      const difference = this.#compare(path, pair);
      if (difference !== null) yield difference;
      const below = directoriesOf(pair);
      if (below !== null) levels.push(this.#level(`${path}/`, below, null, levels.length));
    }
  }

  /** The levels of a walk that has just come by `after`. */
  #resume(after: GuestPath | null): Level[] {
    const names = (after ?? "").split("/").filter((name) => name !== "") as ByteString[];
    const levels: Level[] = [];
    let pair: Pair | null = directoriesOf(this.#root);
    let prefix = "/";
    for (const name of [...names, null]) {
      if (pair === null) break;
      levels.push(this.#level(prefix, pair, name, levels.length));
      if (name === null) break;
      const child = {
        now: childOf(this.#open, pair.now, name) ?? [],
        before: childOf(this.#open, pair.before, name) ?? [],
      };
      pair = directoriesOf(child);
      prefix += `${name}/`;
    }
    return levels;
  }

  /** A name that only the shared places have is the same in both images. */
  #level(prefix: string, pair: Pair, after: ByteString | null, depth: number): Level {
    const { nowTop, beforeTop } = split(pair);
    return { prefix, pair, names: candidatesOf(this.#open, [...nowTop, ...beforeTop], { after, depth }) };
  }

  #childPair(pair: Pair, { name, found }: Candidate): Pair {
    const { nowTop, beforeTop, shared } = split(pair);
    const now = new PlaceStack();
    const before = new PlaceStack();
    for (const { at, entry } of found) {
      if (at < nowTop.length) now.add((nowTop[at] as Place).layer, entry);
      else before.add((beforeTop[at - nowTop.length] as Place).layer, entry);
    }
    for (const stack of [now, before]) stack.look(this.#open, shared, name);
    return { now: now.node() ?? [], before: before.node() ?? [] };
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
    return a.size === b.size && [...a].every(([name, value]) => b.get(name) === value);
  }

  #xattrs(place: Place): Map<string, string> {
    using lease = this.#open.acquire(place.layer);
    const pairs = lease.index.xattrs(place.entry);
    return new Map(pairs.map(({ name, value }) => [name, Buffer.from(value).toString("latin1")]));
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
function split({ now, before }: Pair): {
  readonly nowTop: readonly Place[];
  readonly beforeTop: readonly Place[];
  readonly shared: readonly Place[];
} {
  let count = 0;
  while (count < Math.min(now.length, before.length)) {
    if (!isSamePlace(now[now.length - 1 - count] as Place, before[before.length - 1 - count] as Place)) break;
    count++;
  }
  return {
    nowTop: now.slice(0, now.length - count),
    beforeTop: before.slice(0, before.length - count),
    shared: now.slice(now.length - count),
  };
}

function isSamePlace(a: Place, b: Place): boolean {
  // Every record of an index has a place of its own for what follows it.
  return a.layer.index === b.layer.index && a.entry.place.xattrsOffset === b.entry.place.xattrsOffset;
}
