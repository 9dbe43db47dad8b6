import { type Forest, type ImageNode, lineageOf, newestOf, type RunRow } from "./forest.ts";

/** Shorter chains are shown step by step. */
const STEPS_MIN = 3;
/** Number of visible siblings, those with the latest work; the others fold into one node. */
const SIBLINGS_SHOWN = 8;
const ROOTS_SHOWN = 24;
/** Largest forest that is initially open; in a larger one, only the lines of the newest images are. */
const OPEN_AT_ONCE_MAX = 300;
const NEWEST_OPEN = 300;
/** Largest number of matches that the search unfolds; the folds count the others. */
export const HITS_OUT_MAX = 200;

/** Items per slice. */
const PIECE = 256;

interface Placed {
  readonly key: string;
  readonly parent: Item | null;
  /** depth among the visible items, from 0 */
  readonly column: number;
  /** indent in a list: steps of one line have the same */
  readonly indent: number;
  /** place among its siblings, from 1 */
  readonly place: number;
  readonly siblings: number;
  /** line of the drawing, from 0; set by the layout */
  row: number;
  /** row of the last child, or its own; set by the layout */
  lastRow: number;
}

/** One node of the drawing. */
export type Item = Placed &
  (
    | {
        readonly kind: "image";
        readonly image: ImageNode;
        /** its descendants are folded */
        readonly isClosed: boolean;
      }
    | { readonly kind: "run"; readonly run: RunRow }
    /** a chain, folded */
    | { readonly kind: "steps"; readonly images: readonly ImageNode[] }
    /** folded siblings, the newest first */
    | { readonly kind: "more"; readonly images: readonly ImageNode[]; readonly parentId: string | null }
  );

/** Items that the user opened and folded. */
export interface Folds {
  /** by image: opened or closed by the user */
  readonly open: ReadonlyMap<string, boolean>;
  /** images of chains that were unfolded */
  readonly unfolded: ReadonlySet<string>;
  /** number of visible siblings by parent, "" for roots */
  readonly siblingCounts: ReadonlyMap<string, number>;
  /** everything is unfolded, except the items that the user closed */
  readonly isWhole: boolean;
}

export const NO_FOLDS: Folds = { open: new Map(), unfolded: new Set(), siblingCounts: new Map(), isWhole: false };

export interface VisibleOptions {
  readonly folds: Folds;
  /** images that must be visible, such as the selected one */
  readonly pins: ReadonlySet<string>;
  /** the focused image: only its ancestors and descendants are visible */
  readonly focus: ImageNode | null;
  readonly isSearching: boolean;
  /** all images have arrived: a run on an unknown image runs on a deleted one */
  readonly isComplete: boolean;
}

type Entry =
  | { readonly kind: "image"; readonly image: ImageNode }
  | { readonly kind: "run"; readonly run: RunRow }
  | { readonly kind: "steps"; readonly images: readonly ImageNode[] }
  | { readonly kind: "more"; readonly images: readonly ImageNode[]; readonly parentId: string | null };

interface Waiting {
  readonly entry: Entry;
  readonly parent: Item | null;
  readonly place: number;
  readonly siblings: number;
}

/**
 * The items of a forest to draw, each before its children, in slices. The forest must be measured. No recursion: a chain may
 * be as long as the forest.
 */
export function* visibleItems(forest: Forest, options: VisibleOptions): Generator<void, Item[]> {
  const folding = new Folding(forest, options);
  const items: Item[] = [];
  const waiting: Waiting[] = [];
  const push = (entries: readonly Entry[], parent: Item | null): void => {
    for (let index = entries.length - 1; index >= 0; index--) {
      waiting.push({ entry: entries[index] as Entry, parent, place: index + 1, siblings: entries.length });
    }
  };
  push(folding.roots(), null);
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    const item = itemOf(next, folding);
    items.push(item);
    push(folding.below(item), item);
    if (items.length % PIECE === 0) yield;
  }
  return items;
}

function itemOf({ entry, parent, place, siblings }: Waiting, folding: Folding): Item {
  const column = parent === null ? 0 : parent.column + 1;
  const indent = parent === null ? 0 : parent.indent + (siblings > 1 ? 1 : 0);
  const placed = { parent, column, indent, place, siblings, row: 0, lastRow: 0 };
  switch (entry.kind) {
    case "image":
      return { ...placed, ...entry, key: entry.image.id, isClosed: folding.isClosed(entry.image) };
    case "run":
      return { ...placed, ...entry, key: entry.run.id };
    case "steps":
      return { ...placed, ...entry, key: `steps-${entry.images[0]?.id ?? ""}` };
    case "more":
      return { ...placed, ...entry, key: `more-${entry.parentId ?? "roots"}` };
  }
}

function runsOf(oldestFirst: readonly RunRow[]): Entry[] {
  return [...oldestFirst].reverse().map((run) => ({ kind: "run", run }));
}

/** Adds an image and its ancestors to a set that has the ancestors of each of its images. */
function addLine(line: Set<ImageNode>, image: ImageNode | null): void {
  for (const ancestor of lineageOf(image)) {
    if (line.has(ancestor)) return;
    line.add(ancestor);
  }
}

class Folding {
  readonly #forest: Forest;
  readonly #options: VisibleOptions;
  /** images whose lines are open by default */
  readonly #open = new Set<ImageNode>();
  /** images that stay visible in any fold */
  readonly #pinned = new Set<ImageNode>();
  /** ancestors of these */
  readonly #abovePinned = new Set<ImageNode>();
  /** the focused image and its ancestors */
  readonly #line: ReadonlySet<ImageNode>;

  constructor(forest: Forest, options: VisibleOptions) {
    this.#forest = forest;
    this.#options = options;
    this.#line = new Set(lineageOf(options.focus));
    for (const id of options.pins) this.#pin(forest.images.get(id) ?? null);
    this.#pin(options.focus);
    for (const { imageId } of forest.runs.values())
      this.#pin(imageId === null ? null : (forest.images.get(imageId) ?? null));
    if (options.isSearching) this.#pinHits();
    if (forest.images.size > OPEN_AT_ONCE_MAX && !options.folds.isWhole) {
      for (const image of newestOf(forest.images.values(), NEWEST_OPEN)) addLine(this.#open, image.parent);
    }
  }

  #pinHits(): void {
    const hits = [...this.#forest.images.values()].filter(({ isHit }) => isHit);
    for (const image of newestOf(hits, HITS_OUT_MAX)) this.#pin(image);
  }

  #pin(image: ImageNode | null): void {
    if (image === null) return;
    this.#pinned.add(image);
    addLine(this.#abovePinned, image.parent);
  }

  isClosed(image: ImageNode): boolean {
    if (image.children.length === 0) return false;
    const chosen = this.#options.folds.open.get(image.id);
    // A fold of the user stays closed unless an image in it must be visible.
    if (chosen !== undefined) return !chosen && !this.#mustOpen(image);
    if (this.#options.folds.isWhole || this.#forest.images.size <= OPEN_AT_ONCE_MAX) return false;
    return !this.#open.has(image) && !this.#abovePinned.has(image) && image !== this.#options.focus;
  }

  #mustOpen(image: ImageNode): boolean {
    return (
      (this.#options.isSearching && image.hitsBelow > 0) || (this.#line.has(image) && image !== this.#options.focus)
    );
  }

  roots(): Entry[] {
    const { focus } = this.#options;
    if (focus === null) {
      const { roots, rootRuns } = this.#forest;
      const runs = rootRuns.filter(({ imageId }) => imageId === null || this.#options.isComplete);
      const byRank = [...roots].sort((one, other) => one.rank - other.rank);
      return [...runsOf(runs), ...this.#siblings(byRank, null, ROOTS_SHOWN)];
    }
    const root = [...this.#line].at(-1) ?? focus;
    return [{ kind: "image", image: root }];
  }

  below(item: Item): Entry[] {
    if (item.kind === "run" || item.kind === "more") return [];
    const image = item.kind === "image" ? item.image : item.images.at(-1);
    if (image === undefined) return [];
    const runs = runsOf(image.runs);
    if (item.kind === "image" && item.isClosed) return runs;
    const next = this.#onLine(image);
    if (next !== null) return [this.#entryOf(next)];
    return [...runs, ...this.#siblings(image.children, image.id, SIBLINGS_SHOWN)];
  }

  /** The child that leads to the focused image; null when the image is not above it. */
  #onLine(image: ImageNode): ImageNode | null {
    if (!this.#line.has(image) || image === this.#options.focus) return null;
    return image.children.find((child) => this.#line.has(child)) ?? null;
  }

  #siblings(oldestFirst: readonly ImageNode[], parentId: string | null, shownAtFirst: number): Entry[] {
    const { folds } = this.#options;
    const room = folds.isWhole ? oldestFirst.length : (folds.siblingCounts.get(parentId ?? "") ?? shownAtFirst);
    const newestFirst = [...oldestFirst].reverse();
    const byWork =
      newestFirst.length > room ? [...newestFirst].sort((one, other) => other.latest - one.latest) : newestFirst;
    const mayFold = (image: ImageNode): boolean => !this.#isPinned(image) && !this.#abovePinned.has(image);
    const rest = new Set(byWork.slice(room).filter(mayFold));
    // A node for a few siblings would need as much space as they do.
    if (rest.size < STEPS_MIN) return newestFirst.map((image) => this.#entryOf(image));
    const visible = newestFirst.filter((image) => !rest.has(image)).map((image) => this.#entryOf(image));
    const images = newestFirst.filter((image) => rest.has(image));
    return [...visible, { kind: "more", images, parentId }];
  }

  /** An image, or the chain that begins with it. */
  #entryOf(image: ImageNode): Entry {
    const images: ImageNode[] = [];
    for (let node: ImageNode | null = image; node !== null && this.#isStep(node); node = this.#nextStep(node))
      images.push(node);
    return images.length < STEPS_MIN ? { kind: "image", image } : { kind: "steps", images };
  }

  #nextStep(image: ImageNode): ImageNode | null {
    return this.#onLine(image) ?? image.children[0] ?? null;
  }

  #isStep(image: ImageNode): boolean {
    const { folds } = this.#options;
    if (image.parent === null || this.#isPinned(image) || folds.isWhole || folds.unfolded.has(image.id)) return false;
    if (this.#onLine(image) !== null) return true;
    return image.children.length === 1 && image.runs.length === 0 && !this.isClosed(image);
  }

  #isPinned(image: ImageNode): boolean {
    return this.#pinned.has(image) || image.tag !== null;
  }
}
