import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useReducer, useRef } from "preact/hooks";
import { useColors } from "../../browser/theme.ts";
import { classes } from "../../parts/classes.ts";
import { Content, FoldMark, Unseen, versionOf } from "../card.tsx";
import type { Drawing } from "../model/branches.ts";
import type { Item } from "../model/folds.ts";
import { COLUMN_PX, ROW_PX } from "../model/layout.ts";
import { isPassedOver } from "../model/text.ts";
import { Minimap } from "./minimap.tsx";
import { type Palette, paint, widthOf } from "./paint.ts";
import { Stage } from "./stage.ts";
import { type PointerState, usePointer } from "./use-pointer.ts";

export interface FormProps {
  readonly drawing: Drawing;
  readonly activeKey: string | null;
  /** first item of a comparison */
  readonly comparedKey: string | null;
  /** the item to scroll to; a new object scrolls again */
  readonly target: { readonly key: string } | null;
  readonly onSelect: (item: Item) => void;
  /** a click: selects the item, or picks it for a comparison */
  readonly onPick: (item: Item) => void;
  readonly onToggle: (item: Item) => void;
  readonly onOpen: (item: Item) => void;
  /** @param at position of the menu, in `CSS pixels` of the window */
  readonly onMenu: (item: Item, at: DOMRect) => void;
  /** keys of both forms */
  readonly onKeyDown: (event: KeyboardEvent) => void;
}

interface TreeProps extends FormProps {
  /** set to the control of the stage, for buttons outside */
  readonly control: RefObject<StageControl | null>;
}

/** Control of the stage by buttons and keys. */
export interface StageControl {
  fit(): void;
  zoom(factor: number): void;
}

export function idOf(item: Item): string {
  return `branches-${item.key}`;
}

/** The drawing as a tree that pans and zooms: cards for the visible items, and a canvas with the lines below them. */
export function TreeView(props: TreeProps) {
  const { drawing, activeKey } = props;
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const stage = useMemo(() => new Stage({ isStill: isStill(), unit: rootUnit() }), []);
  const element = useRef<HTMLDivElement>(null);
  const now = performance.now();
  stage.follow(drawing.layout, activeKey, drawing.isComplete, now);
  const pointer = usePointer(element, stage, redraw, (item, act, at) => {
    if (act === "toggle") props.onToggle(item);
    else if (act === "menu") props.onMenu(item, at);
    else if (act === "open") props.onOpen(item);
    else props.onPick(item);
  });
  useView(element, stage, redraw);
  useActiveSeen(stage, props, redraw);
  useTarget(stage, props, redraw);
  props.control.current = {
    fit: () => {
      stage.fit();
      redraw(0);
    },
    zoom: (factor) => {
      stage.zoom(factor);
      redraw(0);
    },
  };
  useEffect(() => {
    if (!stage.isMoving(performance.now())) return;
    const frame = requestAnimationFrame(() => redraw(0));
    return () => cancelAnimationFrame(frame);
  });
  return <Surface {...props} stage={stage} element={element} pointer={pointer} now={now} />;
}

/** Text size relative to the default. */
function rootUnit(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 16 || 1;
}

function isStill(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function useView(element: RefObject<HTMLElement | null>, stage: Stage, redraw: (turn: number) => void): void {
  useLayoutEffect(() => {
    const measured = element.current;
    if (measured === null) return;
    const read = () => {
      stage.resize({ width: measured.clientWidth, height: measured.clientHeight });
      redraw(0);
    };
    read();
    const observer = new ResizeObserver(read);
    observer.observe(measured);
    return () => observer.disconnect();
  }, [stage]);
}

/** Keeps the focused item in view: keys may move far, and the details cover a part of the view. */
function useActiveSeen(stage: Stage, { activeKey, drawing }: TreeProps, redraw: (turn: number) => void): void {
  const item = activeKey === null ? undefined : drawing.layout.byKey.get(activeKey);
  useLayoutEffect(() => {
    if (item === undefined) return;
    stage.show(item);
    redraw(0);
  }, [activeKey, item === undefined, stage.view.width]);
}

/** Scrolls to the requested item, as soon as it is drawn. */
function useTarget(stage: Stage, { target, drawing }: TreeProps, redraw: (turn: number) => void): void {
  const done = useRef<object | null>(null);
  useLayoutEffect(() => {
    const item = target === null ? undefined : drawing.layout.byKey.get(target.key);
    if (target === null || item === undefined || done.current === target) return;
    done.current = target;
    stage.show(item, true);
    redraw(0);
  }, [target, drawing, stage]);
}

interface SurfaceProps extends TreeProps {
  readonly stage: Stage;
  readonly element: RefObject<HTMLDivElement | null>;
  readonly pointer: PointerState;
  readonly now: number;
}

function Surface(props: SurfaceProps) {
  const { drawing, activeKey, stage, element, pointer, now } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const palette = usePalette();
  const cards = stage.cards();
  useLayoutEffect(() => paintStage(canvas.current, props, palette, cards === null));
  const { camera } = stage;
  const active = activeKey === null ? undefined : drawing.layout.byKey.get(activeKey);
  const items = cards ?? [];
  const inDocument = active === undefined || items.includes(active) ? items : [...items, active];
  return (
    <div class="branches-stage relative fill shrink">
      <div
        ref={element}
        class={classes("branches-tree cover", pointer.isPanning && "branches-panning")}
        role="tree"
        aria-label="Branches"
        tabIndex={0}
        aria-activedescendant={active === undefined ? undefined : idOf(active)}
        onKeyDown={props.onKeyDown}
        {...pointer.handlers}
      >
        <canvas ref={canvas} class="branches-canvas cover" />
        <div
          class={classes("branches-cards", cards === null && "branches-cards-small")}
          role="presentation"
          style={{ transform: `scale(${camera.scale}) translate(${-camera.x}px, ${-camera.y}px)` }}
        >
          {inDocument.map((item) => (
            <Card key={item.key} item={item} props={props} stage={stage} now={now} />
          ))}
        </div>
      </div>
      <Minimap stage={stage} drawing={drawing} palette={palette} onMove={pointer.redraw} />
    </div>
  );
}

const INKS = ["--line-control", "--line-strong", "--text", "--accent", "--danger", "--warning", "--chart-2"] as const;

function usePalette(): Palette {
  const colors = useColors(INKS);
  return useMemo(
    () => ({
      line: colors["--line-control"],
      faint: colors["--line-strong"],
      mark: colors["--line-strong"],
      text: colors["--text"],
      accent: colors["--accent"],
      bad: colors["--danger"],
      warning: colors["--warning"],
      match: colors["--chart-2"],
    }),
    [colors],
  );
}

function paintStage(canvas: HTMLCanvasElement | null, props: SurfaceProps, palette: Palette, withMarks: boolean): void {
  const { stage, drawing, now } = props;
  const context = canvas?.getContext("2d") ?? null;
  if (canvas === null || context === null || stage.layout === null) return;
  const ratio = devicePixelRatio;
  const width = Math.round(stage.view.width * ratio);
  const height = Math.round(stage.view.height * ratio);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const scene = {
    layout: stage.layout,
    camera: stage.camera,
    view: stage.view,
    palette,
    withMarks,
    active: (props.activeKey === null ? null : stage.layout.byKey.get(props.activeKey)) ?? null,
    offsetOf: (item: Item) => stage.offsetOf(item, now),
    isDim: (item: Item) => isPassedOver(item, drawing.search),
  };
  paint(context, scene, ratio);
}

interface CardProps {
  readonly item: Item;
  readonly props: SurfaceProps;
  readonly stage: Stage;
  readonly now: number;
}

function Card({ item, props, stage, now }: CardProps) {
  const { search } = props.drawing;
  const offset = stage.offsetOf(item, now);
  const x = item.column * COLUMN_PX + offset.x;
  const y = item.row * ROW_PX + offset.y;
  return (
    <div
      {...treeItem(item, props)}
      class={classes("branches-card", ...stateClasses(item, props))}
      style={{ transform: `translate(${x}px, ${y}px)`, width: `${widthOf(item)}px` }}
    >
      <Content item={item} search={search} version={versionOf(item)} />
      <Unseen item={item} />
      <FoldMark item={item} />
    </div>
  );
}

/** Classes for the state of an item, in both forms. */
export function stateClasses(item: Item, { drawing, activeKey, comparedKey }: FormProps): string[] {
  const run = item.kind === "run" ? item.run.state : null;
  const states = {
    [`branches-${item.kind}`]: true,
    "branches-active": item.key === activeKey,
    "branches-compared": item.key === comparedKey,
    "branches-dim": isPassedOver(item, drawing.search),
    "branches-hit": item.kind === "image" && item.image.isHit,
    "branches-live": run === "running" || run === "waiting",
    "branches-failed": run === "failed",
    "branches-fading": run === "failed" || run === "cancelled" || run === "ended",
  };
  return Object.entries(states).flatMap(([name, holds]) => (holds ? [name] : []));
}

/** Attributes of an item for screen readers, in both forms. Its name is its visible text. */
export function treeItem(item: Item, { activeKey }: FormProps) {
  const isFold = item.kind === "steps" || item.kind === "more";
  const hasMore = isFold || (item.kind === "image" && item.image.children.length + item.image.runs.length > 0);
  return {
    id: idOf(item),
    role: "treeitem" as const,
    "aria-level": item.column + 1,
    "aria-posinset": item.place,
    "aria-setsize": item.siblings,
    "aria-selected": item.key === activeKey,
    ...(hasMore ? { "aria-expanded": !isFold && !(item.kind === "image" && item.isClosed) } : {}),
    "data-key": item.key,
  };
}
