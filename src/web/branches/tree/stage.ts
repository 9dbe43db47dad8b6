import type { Item } from "../model/folds.ts";
import { COLUMN_PX, itemsIn, type Layout, ROW_PX } from "../model/layout.ts";
import {
  areaOf,
  type Camera,
  centred,
  fitted,
  moved,
  type Point,
  type Size,
  START,
  scaled,
  showing,
  within,
} from "./camera.ts";

/** Largest number of cards in the document; more items are painted as marks. */
const CARDS_MAX = 260;
/** Cards are unreadable below this scale. */
const CARDS_FROM_SCALE = 0.5;
/** Duration of the movement to a new place, in `milliseconds`. */
const MOVING_MS = 140;
/** Smallest scale of the fit button. */
const FIT_SCALE_MIN = 0.3;

/** The visible part of a drawing, and its movement when the drawing changes. */
export class Stage {
  camera: Camera = START;
  view: Size = { width: 0, height: 0 };
  layout: Layout | null = null;
  /** scale of cards relative to the default text size */
  readonly unit: number;
  #isComplete = false;
  readonly #moving = new Map<string, Point>();
  #movingSince = 0;
  readonly #isStill: boolean;

  /** @param options `isStill`: no animation; `unit`: see there */
  constructor({ isStill, unit }: { readonly isStill: boolean; readonly unit: number }) {
    this.#isStill = isStill;
    this.unit = unit;
    this.camera = { ...START, scale: unit, x: START.x / unit, y: START.y / unit };
  }

  /**
   * Replaces the drawing. The item in focus stays in place, and items with a new place move there.
   * @param isComplete false: more images are loading, and the view stays at the beginning
   * @param now `milliseconds` of a monotonic clock
   * @returns false when there is nothing new
   */
  follow(layout: Layout, activeKey: string | null, isComplete: boolean, now: number): boolean {
    if (layout === this.layout) return false;
    const before = this.layout;
    this.layout = layout;
    const wasComplete = this.#isComplete;
    this.#isComplete = isComplete;
    if (before === null || !wasComplete) return true;
    const seen = this.cards(before) ?? [];
    const anchor = this.#anchorOf(before, layout, activeKey, seen);
    if (anchor !== null) {
      const { was, is } = anchor;
      const x = this.camera.x + (is.column - was.column) * COLUMN_PX;
      const y = this.camera.y + (is.row - was.row) * ROW_PX;
      this.camera = { ...this.camera, x, y };
    }
    this.camera = within(this.camera, this.view, layout);
    if (!this.#isStill) this.#begin(before, layout, anchor, now);
    return true;
  }

  #anchorOf(before: Layout, after: Layout, activeKey: string | null, seen: readonly Item[]): Anchor | null {
    const active = activeKey === null ? undefined : before.byKey.get(activeKey);
    const isPageVisible = active !== undefined && seen.includes(active);
    for (const was of isPageVisible ? [active, ...seen] : seen) {
      const is = after.byKey.get(was.key);
      if (is !== undefined) return { was, is };
    }
    return null;
  }

  #begin(before: Layout, after: Layout, anchor: Anchor | null, now: number): void {
    this.#moving.clear();
    this.#movingSince = now;
    const columns = anchor === null ? 0 : anchor.is.column - anchor.was.column;
    const rows = anchor === null ? 0 : anchor.is.row - anchor.was.row;
    for (const item of this.cards(after) ?? []) {
      // The image of a run starts at the place of the run, any other new item at its parent.
      const was =
        before.byKey.get(item.key) ??
        (item.kind === "image" ? before.byKey.get(item.image.operation) : undefined) ??
        (item.parent === null ? undefined : before.byKey.get(item.parent.key));
      if (was === undefined) continue;
      const x = (was.column + columns - item.column) * COLUMN_PX;
      const y = (was.row + rows - item.row) * ROW_PX;
      if (x !== 0 || y !== 0) this.#moving.set(item.key, { x, y });
    }
  }

  /** True while an item moves. */
  isMoving(now: number): boolean {
    if (this.#moving.size > 0 && now - this.#movingSince >= MOVING_MS) this.#moving.clear();
    return this.#moving.size > 0;
  }

  /** How far an item is from its place, in `px` at scale 1. */
  offsetOf(item: Item, now: number): Point {
    const from = this.#moving.get(item.key);
    if (from === undefined) return NOWHERE;
    const part = Math.min(1, Math.max(0, (now - this.#movingSince) / MOVING_MS));
    const left = (1 - part) ** 3;
    return { x: from.x * left, y: from.y * left };
  }

  /** The items with cards; null if they are too small or too many. */
  cards(layout: Layout | null = this.layout): Item[] | null {
    if (layout === null || this.camera.scale < CARDS_FROM_SCALE * Math.min(1, this.unit)) return null;
    return itemsIn(layout, areaOf(this.camera, this.view, 1), CARDS_MAX);
  }

  resize(view: Size): void {
    this.view = view;
    this.#keep(this.camera);
  }

  pan(byX: number, byY: number): void {
    this.#keep(moved(this.camera, byX, byY));
  }

  zoom(factor: number, at: Point = { x: this.view.width / 2, y: this.view.height / 2 }): void {
    this.#keep(scaled(this.camera, factor, at));
  }

  fit(): void {
    if (this.layout !== null) this.#keep(fitted(this.layout, this.view, { least: FIT_SCALE_MIN, most: this.unit }));
  }

  /** Scrolls a place into view. @param isFar true: to the middle of the view */
  show(place: { readonly column: number; readonly row: number }, isFar = false): void {
    const near = showing(this.camera, this.view, place);
    const isNear = !isFar || (near.x === this.camera.x && near.y === this.camera.y);
    this.#keep(isNear ? near : centred(this.camera, this.view, place));
  }

  goTo(x: number, y: number): void {
    this.#keep({ ...this.camera, x, y });
  }

  #keep(camera: Camera): void {
    this.camera = this.layout === null ? camera : within(camera, this.view, this.layout);
  }
}

const NOWHERE: Point = { x: 0, y: 0 };

/** An item that keeps its place in the view. */
interface Anchor {
  readonly was: Item;
  readonly is: Item;
}
