import { useRef } from "preact/hooks";
import { printable } from "../text/printable.ts";
import type { Drawing } from "./model/branches.ts";
import type { Item } from "./model/folds.ts";
import { type Step, stepFrom, typedAhead } from "./model/navigation.ts";
import { titleOf } from "./model/text.ts";

/** Longest pause between letters of one word, in `milliseconds`. */
const TYPING_MS = 800;
const PAGE_ROWS = 10;

/** Moves by arrows: by position in the tree, line by line in the list. */
const TREE_STEPS: Readonly<Record<string, Step>> = { ArrowUp: "up", ArrowDown: "down", Home: "first", End: "last" };
const LIST_STEPS: Readonly<Record<string, Step>> = { ...TREE_STEPS, ArrowUp: "previous", ArrowDown: "next" };

export interface TreeKeys {
  readonly drawing: Drawing;
  readonly active: Item | undefined;
  readonly isList: boolean;
  readonly onSelect: (item: Item) => void;
  readonly onToggle: (item: Item) => void;
  readonly onOpen: (item: Item) => void;
  readonly onMenu: (item: Item) => void;
  readonly onEscape: () => void;
  readonly onZoom: (factor: number) => void;
  readonly onFit: () => void;
}

/** Handles the keys of the tree, in both forms. */
export function useTreeKeys(keys: TreeKeys): (event: KeyboardEvent) => void {
  const typed = useRef({ text: "", at: 0 });
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const item = keys.active ?? keys.drawing.layout.items[0];
    if (item === undefined) return;
    if (moves(keys, item, event) || acts(keys, item, event)) {
      event.preventDefault();
      return;
    }
    // Letters also reach the page, which has shortcuts of two letters.
    if (event.key.length === 1 && event.key.trim() !== "") typeAhead(keys, item, event, typed.current);
  };
}

function moves(keys: TreeKeys, item: Item, { key }: KeyboardEvent): boolean {
  const { layout } = keys.drawing;
  const step = (keys.isList ? LIST_STEPS : TREE_STEPS)[key];
  if (step !== undefined) keys.onSelect(keys.active === undefined ? item : stepFrom(layout, item, step));
  else if (key === "PageUp" || key === "PageDown") keys.onSelect(pageFrom(keys, item, key === "PageUp"));
  else if (key === "ArrowRight") goIn(keys, item);
  else if (key === "ArrowLeft") goOut(keys, item);
  else return false;
  return true;
}

function pageFrom({ drawing, isList }: TreeKeys, from: Item, isUp: boolean): Item {
  const steps = isList ? LIST_STEPS : TREE_STEPS;
  let item = from;
  for (let count = 0; count < PAGE_ROWS; count++) {
    item = stepFrom(drawing.layout, item, steps[isUp ? "ArrowUp" : "ArrowDown"] ?? "next");
  }
  return item;
}

function isFolded(item: Item): boolean {
  return item.kind === "more" || item.kind === "steps" || (item.kind === "image" && item.isClosed);
}

function goIn({ drawing, onSelect, onToggle, isList }: TreeKeys, item: Item): void {
  // A folded chain has something to its right in the drawing.
  const next = stepFrom(drawing.layout, item, "child");
  if (isFolded(item) && (isList || next === item)) onToggle(item);
  else onSelect(next);
}

function goOut({ drawing, onSelect, onToggle, isList }: TreeKeys, item: Item): void {
  const isOpen = item.kind === "image" && item.image.children.length > 0 && !item.isClosed;
  if (isList && isOpen) onToggle(item);
  else onSelect(stepFrom(drawing.layout, item, "parent"));
}

function acts(keys: TreeKeys, item: Item, { key, shiftKey }: KeyboardEvent): boolean {
  if (key === "Enter") keys.onOpen(item);
  else if (key === " ") keys.onToggle(item);
  else if (key === "." || key === "ContextMenu" || (key === "F10" && shiftKey)) keys.onMenu(item);
  else if (key === "+" || key === "=") keys.onZoom(KEY_ZOOM);
  else if (key === "-") keys.onZoom(1 / KEY_ZOOM);
  else if (key === "0") keys.onFit();
  else if (key === "Escape") keys.onEscape();
  else return false;
  return true;
}

/** Change of the scale by a key or a click. */
export const KEY_ZOOM = 1.25;

function typeAhead(keys: TreeKeys, item: Item, event: KeyboardEvent, typed: { text: string; at: number }): void {
  const isMore = event.timeStamp - typed.at < TYPING_MS;
  typed.text = isMore ? typed.text + event.key : event.key;
  typed.at = event.timeStamp;
  const next = typedAhead(keys.drawing.layout, item, typed.text, textOf);
  if (next !== null) keys.onSelect(next);
}

/** The text of an item for selection by typing. */
function textOf(item: Item): string {
  if (item.kind === "image" && item.image.tag === null && item.image.command !== null)
    return printable(item.image.command);
  return titleOf(item);
}
