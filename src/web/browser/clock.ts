import { useEffect } from "preact/hooks";
import { createStore, useStore } from "../data/store.ts";

/**
 * Makes a hook that gives the time in `milliseconds` since the epoch, renewed at an interval while a component with it is
 * shown: all of them have one timer. Its argument is false for a component that needs no new time.
 */
export function createClock(intervalMs: number): (isTicking?: boolean) => number {
  const clock = createStore(Date.now());
  let watchers = 0;
  let timer: ReturnType<typeof setInterval> | undefined;
  return (isTicking = true) => {
    useEffect(() => {
      if (!isTicking) return;
      watchers += 1;
      if (watchers === 1) {
        clock.set(Date.now());
        timer = setInterval(() => clock.set(Date.now()), intervalMs);
      }
      return () => {
        watchers -= 1;
        if (watchers === 0) clearInterval(timer);
      };
    }, [isTicking]);
    return useStore(clock);
  };
}

/** The time, renewed each second. */
export const useSeconds = createClock(1_000);
