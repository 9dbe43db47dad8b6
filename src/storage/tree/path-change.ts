import type { ByteString, GuestPath } from "../../domain/tree/guest-path.ts";
import type { PathChangeKind } from "../../domain/tree/path-history.ts";
import type { LocatedEntry, MergeTools, withoutMetadata } from "./directory-merge.ts";
import { type ComparedLayers, ImageDiff, isMadeAnew, type Pair } from "./image-diff.ts";
import type { LayerFiles, OpenLayers } from "./open-layers.ts";

/** How a state differs at a path from the one before it. */
export interface PathChange {
  readonly kind: PathChangeKind;
  /** true: the directory itself is as before, and something below it differs */
  readonly isBelow: boolean;
  /** the entry after the change; null when it is removed */
  readonly now: LocatedEntry | null;
  /** the entry before the change; null when it is added */
  readonly before: LocatedEntry | null;
}

/** The names of a path, from the root; none for the root itself. */
export function namesOf(path: GuestPath): readonly ByteString[] {
  return path.split("/").filter((name) => name !== "") as ByteString[];
}

/** Compares two states of one lineage at single paths. Symlinks are not followed. */
export class PathComparison {
  readonly #diff: ImageDiff;
  /** the directory that was found last: paths are often asked one by one in one directory */
  #last: { readonly directory: string; readonly pair: Pair } | null = null;

  constructor({ now, before }: Pick<ComparedLayers, "now" | "before">, tools: MergeTools) {
    this.#diff = new ImageDiff({ now, before, isOneLine: true }, tools);
  }

  /** The change of a path, or of something below it; null when there is none. Reads only indexes, and yields. */
  async at(path: GuestPath): Promise<PathChange | null> {
    const pair = await this.#pairAt(path);
    const now = pair.now[0] ?? null;
    const before = pair.before[0] ?? null;
    const difference = this.#diff.compare(path, pair);
    const isNew = this.#diff.areRelated && isMadeAnew(pair);
    if (difference !== null || isNew) {
      const isReplaced = isNew || (now !== null && before !== null && now.entry.type !== before.entry.type);
      const kind = isReplaced
        ? "replaced"
        : difference === null || difference.change === "changed"
          ? "modified"
          : difference.change;
      return { kind, isBelow: false, now, before };
    }
    if (!(await this.#diff.differsBelow(path, pair))) return null;
    return { kind: "modified", isBelow: true, now, before };
  }

  async #pairAt(path: GuestPath): Promise<Pair> {
    const names = namesOf(path);
    const name = names.at(-1);
    if (name === undefined) return await this.#diff.root();
    const directory = names.slice(0, -1).join("/");
    if (this.#last?.directory !== directory) {
      let pair = await this.#diff.root();
      for (const parent of names.slice(0, -1)) pair = await this.#diff.child(pair, parent);
      this.#last = { directory, pair };
    }
    return await this.#diff.child(this.#last.pair, name);
  }
}

/** The entry of one layer at a directory; without one, whether the layer hides the entries of lower layers, or leaves them. */
type Reach = LayerDirectory | "hides" | "leaves";
type LayerDirectory = Parameters<typeof withoutMetadata>[0][number] & { readonly isOpaque: boolean };

/** Tells which layers of a chain can change the entries of one directory, with one look-up for each entry and layer. */
export class DirectoryTouches {
  readonly #open: OpenLayers;
  readonly #names: readonly ByteString[];
  /** by the path of the layer's index */
  readonly #reached = new Map<string, Reach>();

  /** @param directory a path without symlinks */
  constructor(open: OpenLayers, directory: GuestPath) {
    this.#open = open;
    this.#names = namesOf(directory);
  }

  /** False when the layer leaves the entry `name`, and all below it, as lower layers have it. Null: the directory itself. */
  touches(layer: LayerFiles, name: ByteString | null): boolean {
    const reach = this.#reached.get(layer.index) ?? this.#reach(layer);
    this.#reached.set(layer.index, reach);
    if (typeof reach === "string") return reach === "hides";
    if (name === null || reach.isOpaque) return true;
    return this.#open.readIndex(layer, (index) => index.child(reach.entry, name)) !== null;
  }

  #reach(layer: LayerFiles): Reach {
    return this.#open.readIndex(layer, (index): Reach => {
      let entry = index.root();
      // overlayfs ignores an opaque mark on a layer's root.
      let isOpaque = false;
      for (const name of this.#names) {
        const child = index.child(entry, name);
        if (child === null) return isOpaque ? "hides" : "leaves";
        if (child.type !== "d") return "hides";
        entry = child;
        isOpaque = child.opaque;
      }
      return { layer, entry: { offsets: entry.offsets }, isOpaque };
    });
  }
}
