import { useEffect, useState } from "preact/hooks";

const SECOND_MS = 1000;

/** The time in `milliseconds` since the epoch, renewed each second. @param isTicking false: it stands still */
export function useNow(isTicking: boolean): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isTicking) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), SECOND_MS);
    return () => clearInterval(timer);
  }, [isTicking]);
  return now;
}
