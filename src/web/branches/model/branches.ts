import { Slicer } from "../../data/slicer.ts";
import { type Folds, type Item, NO_FOLDS, visibleItems } from "./folds.ts";
import { Forest, type ImageNode, lineageOf } from "./forest.ts";
import { type Layout, layOut } from "./layout.ts";
import type { Row } from "./rows.ts";
import { type Search, searchOf } from "./search.ts";

/** How long a run without an image stays visible after its end, in `milliseconds`. */
const FADING_MS = 8_000;
/** Pause between two drawings while rows arrive, in `milliseconds`. */
const EARLY_MS = 150;
/** Rows per slice. */
const PIECE = 256;

/** The part of the forest to draw. */
export interface ForestFilter {
  readonly query: string;
  /** the focused image: only its ancestors and descendants are visible */
  readonly focusId: string | null;
  readonly folds: Folds;
}

/** The laid-out forest. */
export interface Drawing {
  readonly layout: Layout;
  readonly forest: Forest;
  readonly search: Search | null;
  /** number of matches of the search */
  readonly hits: number;
  /** false until the first images arrive */
  readonly isThere: boolean;
  /** all images have arrived */
  readonly isComplete: boolean;
  /** the appliance has older images than these */
  readonly hasOlder: boolean;
}

const NOTHING: Layout = { items: [], byKey: new Map(), columns: 0, rows: 0 };

/**
 * The images of an account and their drawing. Rows are added between drawings, and each drawing is made in slices, so that
 * neither many rows nor many images block the page.
 */
export class Branches {
  #forest = new Forest();
  #filter: ForestFilter = { query: "", focusId: null, folds: NO_FOLDS };
  #selectedId: string | null = null;
  /** images that must stay visible */
  readonly #revealed = new Set<string>();
  #rows: Row[] = [];
  #isComplete = false;
  #isRanked = false;
  /** order of the roots, which stays the same after a reload */
  #ranks = new Map<string, number>();
  /** operations that ended since the load began: rows with an older state may still arrive */
  #ended = new Set<string>();
  #hasOlder = false;
  #isWorking = false;
  readonly #slicer = new Slicer();
  #drawnEarlyAt = Number.NEGATIVE_INFINITY;
  #isStale = false;
  /** the drawing stays until all rows have arrived */
  #isReplacing = false;
  readonly #changed: (drawing: Drawing) => void;
  drawing: Drawing;

  /** @param changed is called with each new drawing */
  constructor(changed: (drawing: Drawing) => void) {
    this.#changed = changed;
    this.drawing = this.#drawn(NOTHING, null, 0);
  }

  get filter(): ForestFilter {
    return this.#filter;
  }

  set filter(filter: ForestFilter) {
    this.#filter = filter;
    this.#redraw();
  }

  get folds(): Folds {
    return this.#filter.folds;
  }

  set folds(folds: Folds) {
    this.filter = { ...this.#filter, folds };
  }

  /** Keeps an image visible, from the next drawing on. */
  select(id: string | null): void {
    this.#selectedId = id;
  }

  /** Unfolds everything around an image. */
  reveal(id: string): void {
    this.#revealed.add(id);
    const image = this.#forest.images.get(id);
    const open = new Map(this.folds.open);
    for (const ancestor of lineageOf(image?.parent ?? null))
      if (open.get(ancestor.id) === false) open.delete(ancestor.id);
    this.folds = { ...this.folds, open };
  }

  /** Adds rows, in the order of their arrival. */
  take(rows: readonly Row[]): void {
    for (const row of rows) this.#rows.push(row);
    this.#redraw();
  }

  /** Drops all images before a reload. The drawing stays until all new rows have arrived. */
  beginAnew(): void {
    this.#isReplacing = this.#isComplete || this.#isReplacing;
    this.#forest = new Forest();
    this.#rows = [];
    this.#isComplete = false;
    this.#isRanked = false;
    this.#ended = new Set();
  }

  #redraw(): void {
    this.#isStale = true;
    if (!this.#isWorking) void this.#work();
  }

  async #work(): Promise<void> {
    this.#isWorking = true;
    while (this.#isStale) {
      await this.#slicer.begin();
      this.#isStale = false;
      const forest = this.#forest;
      await this.#slicer.run(this.#taking(), () => true);
      if (!this.#isComplete && !this.#isDueEarly()) continue;
      this.#isReplacing = false;
      const drawing = await this.#slicer.run(
        this.#drawing(forest),
        () => forest === this.#forest && !this.#isFilterStale(),
      );
      if (drawing === null) {
        this.#isStale = true;
        continue;
      }
      if (drawing.isThere) this.#drawnEarlyAt = performance.now();
      this.drawing = drawing;
      this.#changed(drawing);
    }
    this.#isWorking = false;
  }

  /** The first rows are drawn at once, later ones at intervals: each drawing delays the rows after it. */
  #isDueEarly(): boolean {
    return !this.#isReplacing && performance.now() - this.#drawnEarlyAt >= EARLY_MS;
  }

  /** A changed filter makes the drawing in progress useless. New rows do not: the next drawing has them. */
  #drawnFilter: ForestFilter | null = null;
  #isFilterStale(): boolean {
    return this.#drawnFilter !== this.#filter;
  }

  *#taking(): Generator<void, void> {
    while (this.#rows.length > 0) {
      for (const row of this.#rows.splice(0, PIECE)) this.#takeRow(row);
      yield;
    }
  }

  *#drawing(forest: Forest): Generator<void, Drawing> {
    this.#drawnFilter = this.#filter;
    const { query, folds, focusId } = this.#filter;
    const search = searchOf(query);
    yield* forest.measure(search === null ? null : (image) => search.finds(image));
    if (!this.#isRanked) this.#rank(forest);
    const focus = focusId === null ? null : (forest.images.get(focusId) ?? null);
    const pins = new Set(this.#revealed);
    if (this.#selectedId !== null) pins.add(this.#selectedId);
    const items = yield* visibleItems(forest, {
      folds,
      pins,
      focus,
      isSearching: search !== null,
      isComplete: this.#isComplete,
    });
    const layout = yield* layOut(items);
    let hits = 0;
    if (search !== null) for (const root of forest.roots) hits += root.hitsBelow + (root.isHit ? 1 : 0);
    return this.#drawn(layout, search, hits);
  }

  #drawn(layout: Layout, search: Search | null, hits: number): Drawing {
    const isThere = this.#isComplete || layout.items.length > 0;
    return {
      layout,
      forest: this.#forest,
      search,
      hits,
      isThere,
      isComplete: this.#isComplete,
      hasOlder: this.#hasOlder,
    };
  }

  #takeRow(row: Row): void {
    switch (row.is) {
      case "image":
        this.#forest.add(row.image);
        return;
      case "deleted":
        this.#forest.remove(row.id);
        return;
      case "end":
        this.#isComplete = true;
        this.#hasOlder = row.hasOlder;
        return;
      case "operation":
        this.#takeRun(row);
    }
  }

  #rank({ roots }: Forest): void {
    for (const root of roots) root.rank = this.#ranks.get(root.id) ?? root.latest;
    this.#isRanked = this.#isComplete;
    if (this.#isRanked) this.#ranks = new Map(roots.map(({ id, rank }) => [id, rank]));
  }

  #takeRun({ run, result }: Extract<Row, { is: "operation" }>): void {
    const forest = this.#forest;
    const isLive = run.state === "waiting" || run.state === "running";
    if (isLive && this.#ended.has(run.id)) return;
    if (!isLive) this.#ended.add(run.id);
    // Its image is drawn already, or its run never was.
    if (
      !isLive &&
      (!forest.runs.has(run.id) || (result !== null && result !== run.imageId && forest.images.has(result)))
    ) {
      forest.dropRun(run.id);
      return;
    }
    forest.setRun(run);
    if (isLive) return;
    setTimeout(() => {
      forest.dropRun(run.id);
      if (forest === this.#forest) this.#redraw();
    }, FADING_MS);
  }
}

/** Toggles the fold of an item. */
export function toggled(folds: Folds, item: Item): Folds {
  if (item.kind === "image") return opened(folds, item.image, item.isClosed);
  if (item.kind === "steps") {
    const unfolded = new Set(folds.unfolded);
    for (const { id } of item.images) unfolded.add(id);
    return { ...folds, unfolded };
  }
  if (item.kind === "more") {
    const visibleCount = item.siblings - 1;
    const next = item.images.length <= MORE * 1.5 ? Number.MAX_SAFE_INTEGER : visibleCount + MORE;
    return { ...folds, siblingCounts: new Map(folds.siblingCounts).set(item.parentId ?? "", next) };
  }
  return folds;
}

/** Number of siblings that unfold at a time. */
const MORE = 50;

export function opened(folds: Folds, image: ImageNode, isOpen: boolean): Folds {
  return { ...folds, open: new Map(folds.open).set(image.id, isOpen) };
}

/** Folds the chain of an image again. */
export function foldedChain(folds: Folds, image: ImageNode): Folds {
  const unfolded = new Set(folds.unfolded);
  for (let node: ImageNode | null = image; node !== null && unfolded.delete(node.id); ) node = node.parent;
  for (let node = image.children[0]; node !== undefined && unfolded.delete(node.id); ) node = node.children[0];
  return { ...folds, unfolded };
}
