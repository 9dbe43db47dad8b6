import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Item } from "../model/folds.ts";
import { COLUMN_PX, itemAt, ROW_PX } from "../model/layout.ts";
import type { Point } from "./camera.ts";
import { widthOf } from "./paint.ts";
import type { Stage } from "./stage.ts";

/** How far a pointer moves before it pans, in `px`. */
const PANS_FROM_PX = 4;
/** A step of a wheel in lines, in `px`. */
const LINE_PX = 32;
/** Change of the scale by a wheel step of 100 px. */
const WHEEL_ZOOM = 1.25;

export type Act = "select" | "toggle" | "open" | "menu";

/** Pointers and wheel on the stage. */
export interface PointerState {
  readonly isPanning: boolean;
  redraw(): void;
  readonly handlers: {
    readonly onPointerDown: (event: PointerEvent) => void;
    readonly onPointerMove: (event: PointerEvent) => void;
    readonly onPointerUp: (event: PointerEvent) => void;
    readonly onPointerCancel: (event: PointerEvent) => void;
    readonly onClick: (event: MouseEvent) => void;
    readonly onDblClick: (event: MouseEvent) => void;
    readonly onContextMenu: (event: MouseEvent) => void;
  };
}

/** Pans by dragging and by the wheel, zooms by two fingers and by the wheel with Ctrl, and reports clicks on items. */
export function usePointer(
  element: RefObject<HTMLElement | null>,
  stage: Stage,
  redraw: (turn: number) => void,
  onAct: (item: Item, act: Act, at: DOMRect) => void,
): PointerState {
  const pointers = useRef(new Map<number, Point>());
  const hasPanned = useRef(false);
  const [isPanning, setPanning] = useState(false);
  useWheel(element, stage, redraw);
  const leave = (event: PointerEvent) => {
    pointers.current.delete(event.pointerId);
    if (pointers.current.size === 0) setPanning(false);
  };
  const act = (event: MouseEvent, kind: Act) => {
    const item = itemOf(event, element.current, stage);
    if (item === null || hasPanned.current) return;
    const isOnFold = (event.target as Element).closest("[data-act=toggle]") !== null;
    onAct(item, kind === "select" && isOnFold ? "toggle" : kind, new DOMRect(event.clientX, event.clientY, 0, 0));
  };
  return {
    isPanning,
    redraw: () => redraw(0),
    handlers: {
      onPointerDown: (event) => {
        if (event.button !== 0) return;
        if (pointers.current.size === 0) hasPanned.current = false;
        pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
      },
      onPointerMove: (event) => {
        const last = pointers.current.get(event.pointerId);
        if (last === undefined) return;
        const byX = event.clientX - last.x;
        const byY = event.clientY - last.y;
        if (!hasPanned.current && Math.hypot(byX, byY) < PANS_FROM_PX) return;
        if (!hasPanned.current) {
          hasPanned.current = true;
          setPanning(true);
        }
        // Captured at once, it would swallow the click on the element below.
        element.current?.setPointerCapture(event.pointerId);
        const other = [...pointers.current].find(([id]) => id !== event.pointerId)?.[1];
        pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
        if (other === undefined) stage.pan(-byX, -byY);
        else pinch(stage, element.current, last, { x: event.clientX, y: event.clientY }, other);
        redraw(0);
      },
      onPointerUp: leave,
      onPointerCancel: leave,
      onClick: (event) => act(event, "select"),
      onDblClick: (event) => act(event, "open"),
      onContextMenu: (event) => {
        if (itemOf(event, element.current, stage) === null) return;
        event.preventDefault();
        act(event, "menu");
      },
    },
  };
}

/** Zooms by the distance of two fingers, and pans by their movement. */
function pinch(stage: Stage, element: HTMLElement | null, last: Point, now: Point, other: Point): void {
  const before = Math.hypot(last.x - other.x, last.y - other.y);
  const after = Math.hypot(now.x - other.x, now.y - other.y);
  const corner = element?.getBoundingClientRect();
  if (before < 1 || corner === undefined) return;
  stage.pan(-(now.x - last.x) / 2, -(now.y - last.y) / 2);
  stage.zoom(after / before, { x: (now.x + other.x) / 2 - corner.x, y: (now.y + other.y) / 2 - corner.y });
}

function useWheel(element: RefObject<HTMLElement | null>, stage: Stage, redraw: (turn: number) => void): void {
  useEffect(() => {
    const target = element.current;
    if (target === null) return;
    const onWheel = (event: WheelEvent) => {
      event.preventDefault();
      const unit = event.deltaMode === WheelEvent.DOM_DELTA_PIXEL ? 1 : LINE_PX;
      const corner = target.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) {
        const at = { x: event.clientX - corner.x, y: event.clientY - corner.y };
        stage.zoom(WHEEL_ZOOM ** ((-event.deltaY * unit) / 100), at);
      } else if (event.shiftKey && event.deltaX === 0) {
        stage.pan(event.deltaY * unit, 0);
      } else {
        stage.pan(event.deltaX * unit, event.deltaY * unit);
      }
      redraw(0);
    };
    // Not as an attribute: only a listener that is not passive can prevent scrolling.
    target.addEventListener("wheel", onWheel, { passive: false });
    return () => target.removeEventListener("wheel", onWheel);
  }, [element, stage]);
}

/** The item below a pointer: its card, or its mark where there are no cards. */
function itemOf(event: MouseEvent, element: HTMLElement | null, stage: Stage): Item | null {
  const { layout, camera } = stage;
  const key = (event.target as Element).closest<HTMLElement>("[data-key]")?.dataset["key"];
  if (key !== undefined) return layout?.byKey.get(key) ?? null;
  const corner = element?.getBoundingClientRect();
  if (layout === null || corner === undefined || stage.cards() !== null) return null;
  const x = camera.x + (event.clientX - corner.x) / camera.scale;
  const column = Math.floor(x / COLUMN_PX);
  const row = Math.floor((camera.y + (event.clientY - corner.y) / camera.scale) / ROW_PX);
  const item = itemAt(layout, column, row);
  return item !== null && x - column * COLUMN_PX <= widthOf(item) ? item : null;
}
