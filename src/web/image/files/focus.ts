import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { EncodedPath } from "../paths.ts";

/**
 * Keeps the focus in the section when the user opens an entry of a list by the keyboard. The list disappears, and the focus
 * with it, so the section gets the focus until the next list is loaded. Content that loads later gets the focus by
 * {@link useFocusTaken}.
 */
export function useFocusKept(path: EncodedPath, isShown: boolean): RefObject<HTMLElement | null> {
  const section = useRef<HTMLElement>(null);
  const previous = useRef<EncodedPath | null>(path);
  useLayoutEffect(() => {
    if (previous.current === path) return;
    previous.current = isShown ? path : null;
    const { activeElement } = document;
    if (activeElement !== document.body && activeElement !== section.current) return;
    const list = isShown ? section.current?.querySelector<HTMLElement>("[role=grid]") : null;
    (list ?? section.current)?.focus({ preventScroll: true });
  }, [path, isShown]);
  return section;
}

/** Moves the focus from the section to the rows of a file, so that arrow keys scroll them. */
export function useFocusTaken(place: RefObject<HTMLElement | null>): void {
  useEffect(() => {
    if (document.activeElement?.classList.contains("image-files") !== true) return;
    place.current?.querySelector<HTMLElement>("[role=grid]")?.focus({ preventScroll: true });
  }, []);
}
