import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

/** Length of the text whose width is measured. */
const MEASURED_COUNT = 10;
/** Space for the scroll bar and borders, in `CSS pixels`. */
const BAR_PIXELS = 20;
const COLUMNS_MIN = 16;

/** Invisible text of a known length: {@link useColumns} measures it. */
export function Measure() {
  return (
    <span class="image-measure fixed small" aria-hidden="true">
      {"0".repeat(MEASURED_COUNT)}
    </span>
  );
}

/**
 * Number of characters of code that fit into an element with a {@link Measure}; 0 until it is measured.
 * @param margin characters that the margins of the text take
 */
export function useColumns(place: RefObject<HTMLElement | null>, margin: number): number {
  const [columns, setColumns] = useState(0);
  useLayoutEffect(() => {
    const element = place.current;
    if (element === null) return;
    const measure = () => {
      const width = element.querySelector(".image-measure")?.getBoundingClientRect().width ?? 0;
      const character = width / MEASURED_COUNT;
      if (character === 0) return;
      setColumns(Math.max(COLUMNS_MIN, Math.floor((element.clientWidth - BAR_PIXELS) / character) - margin));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [margin]);
  return columns;
}
