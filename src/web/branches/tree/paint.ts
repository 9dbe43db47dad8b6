import type { Item } from "../model/folds.ts";
import {
  CARD_HEIGHT_PX,
  CARD_WIDTH_PX,
  COLUMN_PX,
  connectedIn,
  itemsIn,
  type Layout,
  ROW_PX,
} from "../model/layout.ts";
import { failureOf, titleOf } from "../model/text.ts";
import { areaOf, type Camera, type Point, type Size, sizeOf } from "./camera.ts";

/** Width of a folded node, in `px` at scale 1. */
export const FOLD_WIDTH_PX = 152;
/** Smallest scale with names. */
const NAMES_FROM_SCALE = 0.28;
/** Distance of the vertical part of a connection from its child, and radius of its corner, in `px` at scale 1. */
const RAIL_PX = 22;
const CORNER_PX = 10;
/** Largest number of painted items: a screen cannot show more. */
const PAINTED_MAX = 20_000;

/** Colours of the visible theme. */
export interface Palette {
  readonly line: string;
  readonly faint: string;
  readonly mark: string;
  readonly text: string;
  readonly accent: string;
  readonly bad: string;
  readonly warning: string;
  readonly match: string;
}

export interface Scene {
  readonly layout: Layout;
  readonly camera: Camera;
  readonly view: Size;
  readonly palette: Palette;
  /** true: items are painted, because the document has no cards */
  readonly withMarks: boolean;
  /** the item that has the focus */
  readonly active: Item | null;
  /** how far an item is from its place while it moves there */
  offsetOf(item: Item): Point;
  /** the search does not find it */
  isDim(item: Item): boolean;
}

export function widthOf(item: Item): number {
  return item.kind === "steps" || item.kind === "more" ? FOLD_WIDTH_PX : CARD_WIDTH_PX;
}

/** Paints connections, and marks of items where these are too many or too small for cards. */
export function paint(context: CanvasRenderingContext2D, scene: Scene, ratio: number): void {
  const { camera, view } = scene;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, view.width, view.height);
  const scale = camera.scale * ratio;
  context.setTransform(scale, 0, 0, scale, -camera.x * scale, -camera.y * scale);
  paintConnections(context, scene);
  if (scene.withMarks) paintMarks(context, scene);
}

function paintConnections(context: CanvasRenderingContext2D, scene: Scene): void {
  const { layout, camera, view, palette } = scene;
  const { firstRow, lastRow, firstColumn, lastColumn } = areaOf(camera, view, 1);
  const lines = { plain: new Path2D(), live: new Path2D(), dim: new Path2D(), cut: new Path2D(), way: new Path2D() };
  const way = wayTo(scene.active);
  // Lines from above start at the upper edge of the view: a fan may have thousands of long lines.
  const top = camera.y - ROW_PX;
  for (const { from, to, row } of connectedIn(layout, firstRow, lastRow)) {
    if (from.column > lastColumn || from.column + 1 < firstColumn) continue;
    connect(lines[to === null ? "plain" : way.has(to) ? "way" : styleOf(to, scene)], scene, from, to, row, top);
  }
  // The path to the focused item may end below the visible part.
  for (const item of way) {
    if (item.row > lastRow && item.parent !== null && item.parent.row <= lastRow)
      connect(lines.way, scene, item.parent, item, item.row, top);
  }
  context.lineCap = "round";
  context.lineWidth = Math.max(1.5, 0.75 / camera.scale);
  const draw = (path: Path2D, colour: string, dashes: number[]): void => {
    context.strokeStyle = colour;
    context.setLineDash(dashes);
    context.stroke(path);
  };
  draw(lines.dim, palette.faint, []);
  draw(lines.plain, palette.line, []);
  draw(lines.cut, palette.line, [3, 5]);
  draw(lines.live, palette.accent, [6, 6]);
  draw(lines.way, palette.accent, []);
  context.setLineDash([]);
}

/** An item and its ancestors. */
function wayTo(active: Item | null): Set<Item> {
  const way = new Set<Item>();
  for (let item = active; item !== null; item = item.parent) way.add(item);
  return way;
}

function styleOf(item: Item, scene: Scene): "plain" | "live" | "dim" | "cut" {
  if (item.kind === "run" && (item.run.state === "running" || item.run.state === "waiting")) return "live";
  if (scene.isDim(item)) return "dim";
  return item.kind === "image" && item.image.skipped > 0 ? "cut" : "plain";
}

function connect(path: Path2D, scene: Scene, from: Item, to: Item | null, row: number, top: number): void {
  const start = scene.offsetOf(from);
  const end = to === null ? start : scene.offsetOf(to);
  const fromX = from.column * COLUMN_PX + widthOf(from) + start.x;
  const fromY = from.row * ROW_PX + CARD_HEIGHT_PX / 2 + start.y;
  const toX = (from.column + 1) * COLUMN_PX + end.x;
  const toY = row * ROW_PX + CARD_HEIGHT_PX / 2 + end.y;
  if (Math.abs(toY - fromY) < 1) {
    path.moveTo(fromX, fromY);
    path.lineTo(toX, toY);
    return;
  }
  const railX = toX - RAIL_PX;
  const corner = Math.min(CORNER_PX, Math.abs(toY - fromY) / 2);
  if (fromY > top) {
    path.moveTo(fromX, fromY);
    path.lineTo(railX - corner, fromY);
    path.quadraticCurveTo(railX, fromY, railX, fromY + corner);
  } else {
    path.moveTo(railX, top);
  }
  path.lineTo(railX, toY - corner);
  if (to === null) return;
  path.quadraticCurveTo(railX, toY, railX + corner, toY);
  path.lineTo(toX, toY);
}

function paintMarks(context: CanvasRenderingContext2D, scene: Scene): void {
  const { layout, camera, view, palette } = scene;
  const items = itemsIn(layout, areaOf(camera, view, 0), PAINTED_MAX) ?? layout.items;
  const withNames = camera.scale >= NAMES_FROM_SCALE;
  context.font = `500 ${NAME_PX}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  for (const item of items) {
    const offset = scene.offsetOf(item);
    const x = item.column * COLUMN_PX + offset.x;
    const y = item.row * ROW_PX + offset.y;
    context.globalAlpha = scene.isDim(item) ? DIM_ALPHA : 1;
    paintMark(context, item, x, y, palette);
    if (item === scene.active) {
      context.strokeStyle = palette.accent;
      context.lineWidth = 2 / camera.scale;
      context.strokeRect(x - 3, y + 3, widthOf(item) + 6, CARD_HEIGHT_PX - 6);
    }
    if (!withNames) continue;
    context.fillStyle = palette.text;
    context.fillText(shortened(titleOf(item)), x + 14, y + CARD_HEIGHT_PX / 2 + 1);
  }
  context.globalAlpha = 1;
}

const DIM_ALPHA = 0.35;
const NAME_PX = 24;
const NAME_CHARACTERS = 15;

function shortened(name: string): string {
  return name.length > NAME_CHARACTERS ? `${name.slice(0, NAME_CHARACTERS - 1)}…` : name;
}

function paintMark(context: CanvasRenderingContext2D, item: Item, x: number, y: number, palette: Palette): void {
  const width = widthOf(item);
  context.fillStyle = item.kind === "image" && item.image.isHit ? palette.match : palette.mark;
  context.beginPath();
  context.roundRect(x, y + 6, width, CARD_HEIGHT_PX - 12, 8);
  context.fill();
  const colour = colourOf(item, palette);
  if (colour === null) return;
  context.fillStyle = colour;
  context.fillRect(x, y + 6, 6, CARD_HEIGHT_PX - 12);
}

function colourOf(item: Item, palette: Palette): string | null {
  if (item.kind === "run") return item.run.state === "failed" ? palette.bad : palette.accent;
  if (item.kind !== "image") return null;
  if (item.image.tag !== null) return palette.accent;
  return failureOf(item.image) === null ? null : palette.warning;
}

/** The scales of a minimap: both directions fill it, each with its own scale. */
export interface Reduction {
  readonly x: number;
  readonly y: number;
}

export function reductionOf(layout: Layout, small: Size): Reduction {
  const { width, height } = sizeOf(layout);
  // Short forests keep their proportions.
  return { x: Math.min(0.1, small.width / Math.max(1, width)), y: Math.min(0.1, small.height / Math.max(1, height)) };
}

/** Paints all items as dots; two at the same place are painted once. */
export function paintSmall(
  context: CanvasRenderingContext2D,
  layout: Layout,
  small: Size,
  palette: Palette,
  ratio: number,
): void {
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, small.width, small.height);
  const reduction = reductionOf(layout, small);
  const width = Math.max(2, CARD_WIDTH_PX * reduction.x);
  const height = Math.max(1, Math.min(4, CARD_HEIGHT_PX * reduction.y));
  const painted = new Set<number>();
  for (const item of layout.items) {
    const x = item.column * COLUMN_PX * reduction.x;
    const y = item.row * ROW_PX * reduction.y;
    const isFound = item.kind === "image" && item.image.isHit;
    const place = Math.round(x) * 65_536 + Math.round(y * 2);
    if (painted.has(place) && !isFound) continue;
    painted.add(place);
    context.fillStyle = isFound ? palette.match : (colourOf(item, palette) ?? palette.line);
    context.fillRect(x, y, width, height);
  }
}
