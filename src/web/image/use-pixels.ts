import { useEffect, useState } from "preact/hooks";

/** Size of the page's text in `CSS pixels`, which depends on the user's settings and the width of the window. */
function remPixels(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
}

/** A length in `CSS pixels`, for rows of fixed height. @param rem at the usual text size */
export function usePixels(rem: number): number {
  const [pixels, setPixels] = useState(remPixels);
  useEffect(() => {
    const measure = () => setPixels(remPixels());
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  return Math.round(rem * pixels);
}

const COARSE = "(pointer: coarse)";

/** Height of the rows of a list, in `CSS pixels`: higher for fingers. */
export function useRowPixels(): number {
  const usual = usePixels(2);
  const forFingers = usePixels(2.75);
  return matchMedia(COARSE).matches ? forFingers : usual;
}
