import { useLayoutEffect, useRef } from "preact/hooks";
import { createStore } from "../data/store.ts";

/** A key of the page, as the help shows it. */
export interface Shortcut {
  /** characters as `KeyboardEvent.key` has them, one after the other: `g b`, `?`, `/` */
  readonly keys: string;
  /** what it does */
  readonly text: string;
  /** where it works, such as "Everywhere", "Branches" */
  readonly group: string;
}

interface Entry extends Shortcut {
  readonly handle: () => void;
}

/** Longest pause between the keys of a sequence, in `milliseconds`. */
const SEQUENCE_MS = 1_200;
const OFF = "coppice.keys";

/** The shortcuts that work now, newest last. */
export const shortcuts = createStore<readonly Entry[]>([]);
/** Whether single characters are shortcuts: people who dictate text turn them off. */
export const areKeysOn = createStore(localStorage.getItem(OFF) !== "off");

export function turnKeys(isOn: boolean): void {
  if (isOn) localStorage.removeItem(OFF);
  else localStorage.setItem(OFF, "off");
  areKeysOn.set(isOn);
}

/** A shortcut that works while the component is shown, except in text fields and under dialogs. */
export function useShortcut(shortcut: Shortcut, handle: () => void): void {
  const latest = useRef(handle);
  latest.current = handle;
  const { keys, text, group } = shortcut;
  // Registered before the browser paints: its keys work as soon as the component is visible.
  useLayoutEffect(() => {
    const entry: Entry = { keys, text, group, handle: () => latest.current() };
    shortcuts.set([...shortcuts.get(), entry]);
    return () => shortcuts.set(shortcuts.get().filter((other) => other !== entry));
  }, [keys, text, group]);
}

let typed = "";
let typedAt = 0;

/** Takes the keys of the page; called once. */
export function startKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key.length !== 1 || !areKeysOn.get() || isTaken(event.target as Element | null)) return;
    const isSequence = event.timeStamp - typedAt < SEQUENCE_MS;
    const entry = (isSequence ? matching(`${typed} ${event.key}`) : undefined) ?? matching(event.key);
    typed = entry === undefined ? event.key : "";
    typedAt = event.timeStamp;
    if (entry === undefined) return;
    event.preventDefault();
    entry.handle();
  });
}

/** The newest wins: a view may take a key from the frame. */
function matching(keys: string): Entry | undefined {
  return shortcuts.get().findLast((entry) => entry.keys === keys);
}

/** True if the keys belong to a field, a dialog or a menu. */
function isTaken(target: Element | null): boolean {
  if (document.querySelector("dialog[open], [popover]:popover-open") !== null) return true;
  return target !== null && isWriting(target);
}

/** True for elements in which keys write text or select from a list. */
export function isWriting(target: Element): boolean {
  return (
    target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable], .xterm") !== null
  );
}
