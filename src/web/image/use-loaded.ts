import { useEffect, useRef, useState } from "preact/hooks";
import { isAbort, type Problem, problemOf } from "../data/problem.ts";

export interface Loaded<T> {
  readonly value: T | undefined;
  readonly problem: Problem | undefined;
  readonly isLoading: boolean;
}

const NOTHING = { value: undefined, problem: undefined };

/**
 * What `load` gives for a key, and what it tells on its way there. Nothing is kept for later: contents of files are large,
 * and images do not change.
 * @param key names all that `load` depends on; null: there is nothing to load
 */
export function useLoaded<T>(
  key: string | null,
  load: (signal: AbortSignal, tell: (value: T) => void) => Promise<T>,
): Loaded<T> & { readonly reload: () => void } {
  const [turn, setTurn] = useState(0);
  const [loaded, setLoaded] = useState<Loaded<T> & { readonly key: string | null }>({
    ...NOTHING,
    key,
    isLoading: true,
  });
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    if (key === null) return;
    const leaving = new AbortController();
    const { signal } = leaving;
    const tell = (value: T, isLoading = true) => {
      if (!signal.aborted) setLoaded({ key, value, problem: undefined, isLoading });
    };
    setLoaded({ ...NOTHING, key, isLoading: true });
    latest.current(signal, tell).then(
      (value) => tell(value, false),
      (error: unknown) => {
        if (signal.aborted || isAbort(error)) return;
        setLoaded((last) => ({ ...last, key, problem: problemOf(error), isLoading: false }));
      },
    );
    return () => leaving.abort();
  }, [key, turn]);
  const reload = () => setTurn((count) => count + 1);
  if (key === null) return { ...NOTHING, isLoading: false, reload };
  // Between a new key and its effect, the value of the old one must not be shown.
  return loaded.key === key ? { ...loaded, reload } : { ...NOTHING, isLoading: true, reload };
}
