import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { onReturn } from "./connection.ts";
import { isAbort, type Problem, problemOf } from "./problem.ts";
import { onSessionChange } from "./session.ts";

/** Values that are kept, so that going back shows at once what there was. */
const KEPT_MAX = 40;
const kept = new Map<string, unknown>();
onSessionChange(() => kept.clear());

function keep(key: string, value: unknown): void {
  kept.delete(key);
  kept.set(key, value);
  const oldest = kept.keys().next().value;
  if (kept.size > KEPT_MAX && oldest !== undefined) kept.delete(oldest);
}

export interface Resource<T> {
  /** the newest one of this key, also while it is loaded anew and after that failed */
  readonly value: T | undefined;
  readonly problem: Problem | undefined;
  readonly isLoading: boolean;
  /** Loads it anew, after the loading that goes on; the value stays until the new one is there. */
  reload(): void;
}

interface Loaded<T> {
  readonly key: string | null;
  readonly value: T | undefined;
  readonly problem: Problem | undefined;
  readonly isLoading: boolean;
}

/**
 * What `load` gives for a key. It is loaded when the key changes, by `reload`, and again when the appliance comes back after
 * it did not answer. A value that was loaded for the same key before is there at once, and loaded anew.
 * @param key names all that `load` depends on; null: there is nothing to load
 */
export function useResource<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Resource<T> {
  const [turn, setTurn] = useState(0);
  const [loaded, setLoaded] = useState<Loaded<T>>(() => before(key));
  const latest = useRef(load);
  latest.current = load;
  const isUnderWay = useRef(false);
  const isDue = useRef(false);
  const reload = useCallback(() => {
    // Where changes come quicker than answers, none would ever arrive if each change gave up the one before.
    if (isUnderWay.current) isDue.current = true;
    else setTurn((count) => count + 1);
  }, []);

  useEffect(() => {
    if (key === null) return;
    const leaving = new AbortController();
    isUnderWay.current = true;
    isDue.current = false;
    const end = (told: (last: Loaded<T>) => Loaded<T>) => {
      if (leaving.signal.aborted) return;
      isUnderWay.current = false;
      setLoaded(told);
      if (isDue.current) reload();
    };
    setLoaded((last) => ({ ...(last.key === key ? last : before<T>(key)), isLoading: true }));
    latest.current(leaving.signal).then(
      (value) => {
        if (!leaving.signal.aborted) keep(key, value);
        end(() => ({ key, value, problem: undefined, isLoading: false }));
      },
      (error: unknown) => {
        end((last) => (isAbort(error) ? last : { ...last, key, problem: problemOf(error), isLoading: false }));
      },
    );
    return () => {
      isUnderWay.current = false;
      leaving.abort();
    };
  }, [key, turn]);

  const isPassing = loaded.problem?.isPassing === true;
  useEffect(() => (isPassing ? onReturn(reload) : undefined), [isPassing, reload]);

  // Between a new key and its effect, the value of the old one must not be shown.
  const current = loaded.key === key ? loaded : before<T>(key);
  const { value, problem, isLoading } = current;
  return { value, problem, isLoading, reload };
}

function before<T>(key: string | null): Loaded<T> {
  const value = key === null ? undefined : (kept.get(key) as T | undefined);
  return { key, value, problem: undefined, isLoading: key !== null };
}
