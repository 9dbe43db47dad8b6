import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { EncodedPath } from "../paths.ts";

/**
 * Whoever opens an entry of a list by the keyboard goes on in what it shows: the list that had the focus is gone then, and
 * the focus with it. Until the next list is there the section has the focus, so that its keys work. What comes later still
 * takes the focus over with {@link useFocusTaken}.
 */
export function useFocusKept(path: EncodedPath, isShown: boolean): RefObject<HTMLElement | null> {
  const section = useRef<HTMLElement>(null);
  const shown = useRef<EncodedPath | null>(path);
  useLayoutEffect(() => {
    if (shown.current === path) return;
    shown.current = isShown ? path : null;
    const { activeElement } = document;
    if (activeElement !== document.body && activeElement !== section.current) return;
    const list = isShown ? section.current?.querySelector<HTMLElement>("[role=grid]") : null;
    (list ?? section.current)?.focus({ preventScroll: true });
  }, [path, isShown]);
  return section;
}

/** The rows of a file take the focus over from the files as a whole, so that arrow keys scroll them. */
export function useFocusTaken(place: RefObject<HTMLElement | null>): void {
  useEffect(() => {
    if (document.activeElement?.classList.contains("image-files") !== true) return;
    place.current?.querySelector<HTMLElement>("[role=grid]")?.focus({ preventScroll: true });
  }, []);
}
