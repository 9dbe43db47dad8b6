import { useEffect, useRef } from "preact/hooks";

/** Calls `again` at intervals while the component is shown and the page is visible, and when it becomes visible. */
export function useInterval(milliseconds: number, again: () => void): void {
  const latest = useRef(again);
  latest.current = again;
  useEffect(() => {
    const look = () => {
      if (document.visibilityState === "visible") latest.current();
    };
    const timer = setInterval(look, milliseconds);
    document.addEventListener("visibilitychange", look);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [milliseconds]);
}
