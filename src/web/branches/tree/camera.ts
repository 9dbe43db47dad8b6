import { type Area, CARD_HEIGHT_PX, CARD_WIDTH_PX, COLUMN_PX, type Layout, ROW_PX } from "../model/layout.ts";

/** The visible part of the drawing: (x, y), in `px` at scale 1, is the upper left corner of the view. */
export interface Camera {
  readonly x: number;
  readonly y: number;
  readonly scale: number;
}

export interface Size {
  readonly width: number;
  readonly height: number;
}

export interface Point {
  readonly x: number;
  readonly y: number;
}

export const SCALE_MIN = 0.08;
export const SCALE_MAX = 1.6;
/** Space around the drawing, in `px`. */
const MARGIN_PX = 32;
/** Share of the view that may be empty after panning beyond the drawing. */
const BEYOND = 0.5;

/** Size of a drawing at scale 1. */
export function sizeOf({ columns, rows }: Layout): Size {
  return {
    width: Math.max(0, columns - 1) * COLUMN_PX + CARD_WIDTH_PX,
    height: Math.max(0, rows - 1) * ROW_PX + CARD_HEIGHT_PX,
  };
}

/** The camera, moved so that part of the drawing stays visible. */
export function within(camera: Camera, view: Size, layout: Layout): Camera {
  const drawn = sizeOf(layout);
  const scale = clamp(camera.scale, SCALE_MIN, SCALE_MAX);
  return {
    scale,
    x: along(camera.x, view.width / scale, drawn.width),
    y: along(camera.y, view.height / scale, drawn.height),
  };
}

function along(start: number, seen: number, drawn: number): number {
  const room = Math.max(MARGIN_PX, seen * BEYOND);
  return clamp(start, Math.min(-MARGIN_PX, -room), Math.max(-MARGIN_PX, drawn - seen + room));
}

function clamp(value: number, low: number, high: number): number {
  return Math.max(low, Math.min(high, value));
}

/** Changes the scale around the point `at` of the view. */
export function scaled(camera: Camera, factor: number, at: Point): Camera {
  const scale = clamp(camera.scale * factor, SCALE_MIN, SCALE_MAX);
  return { scale, x: camera.x + at.x / camera.scale - at.x / scale, y: camera.y + at.y / camera.scale - at.y / scale };
}

export function moved(camera: Camera, byX: number, byY: number): Camera {
  return { ...camera, x: camera.x + byX / camera.scale, y: camera.y + byY / camera.scale };
}

/** The beginning of the drawing at full size. */
export const START: Camera = { x: -MARGIN_PX, y: -MARGIN_PX, scale: 1 };

/** The whole drawing, or its beginning if the whole would not be readable. @param scales bounds of the scale */
export function fitted(layout: Layout, view: Size, scales: { readonly least: number; readonly most: number }): Camera {
  const drawn = sizeOf(layout);
  const scale = Math.min(
    (view.width - 2 * MARGIN_PX) / Math.max(1, drawn.width),
    (view.height - 2 * MARGIN_PX) / Math.max(1, drawn.height),
  );
  const kept = clamp(scale, scales.least, scales.most);
  return { scale: kept, x: -MARGIN_PX / kept, y: -MARGIN_PX / kept };
}

/** The nearest camera that shows the card at a place, with a margin. */
export function showing(camera: Camera, view: Size, place: { readonly column: number; readonly row: number }): Camera {
  const scale = camera.scale;
  const room = MARGIN_PX / scale;
  const x = place.column * COLUMN_PX;
  const y = place.row * ROW_PX;
  const near = (start: number, seen: number, from: number, length: number): number =>
    clamp(start, from + length + room - seen, Math.max(from - room, from + length + room - seen));
  return {
    scale,
    x: near(camera.x, view.width / scale, x, CARD_WIDTH_PX),
    y: near(camera.y, view.height / scale, y, CARD_HEIGHT_PX),
  };
}

/** The camera that has the card at a place in its middle. */
export function centred(camera: Camera, view: Size, place: { readonly column: number; readonly row: number }): Camera {
  const { scale } = camera;
  const x = place.column * COLUMN_PX + CARD_WIDTH_PX / 2 - view.width / scale / 2;
  return { scale, x, y: place.row * ROW_PX + CARD_HEIGHT_PX / 2 - view.height / scale / 2 };
}

/** The visible rows and columns, and `around` more of both. */
export function areaOf(camera: Camera, view: Size, around: number): Area {
  return {
    firstColumn: Math.floor((camera.x - CARD_WIDTH_PX) / COLUMN_PX) + 1 - around,
    lastColumn: Math.floor((camera.x + view.width / camera.scale) / COLUMN_PX) + around,
    firstRow: Math.floor((camera.y - CARD_HEIGHT_PX) / ROW_PX) + 1 - around,
    lastRow: Math.floor((camera.y + view.height / camera.scale) / ROW_PX) + around,
  };
}
