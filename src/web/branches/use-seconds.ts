import { useEffect } from "preact/hooks";
import { createStore, useStore } from "../data/store.ts";

const clock = createStore(Date.now());
let watchers = 0;
let timer: ReturnType<typeof setInterval> | undefined;

/** The time in `milliseconds` since 1970, renewed each second while somebody looks. */
export function useSeconds(): number {
  useEffect(() => {
    watchers += 1;
    if (watchers === 1) {
      clock.set(Date.now());
      timer = setInterval(() => clock.set(Date.now()), 1_000);
    }
    return () => {
      watchers -= 1;
      if (watchers === 0) clearInterval(timer);
    };
  }, []);
  return useStore(clock);
}
