import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { onReturn } from "./connection.ts";
import { isAbort, type Problem, problemOf } from "./problem.ts";
import { onSessionChange } from "./session.ts";

/** Cached values: a view that is opened again shows them at once. */
const CACHED_MAX = 40;
const cached = new Map<string, unknown>();
onSessionChange(() => cached.clear());

function cache(key: string, value: unknown): void {
  cached.delete(key);
  cached.set(key, value);
  const oldest = cached.keys().next().value;
  if (cached.size > CACHED_MAX && oldest !== undefined) cached.delete(oldest);
}

export interface Resource<T> {
  /** the latest value of the key, also while it is reloaded and after the reload failed */
  readonly value: T | undefined;
  readonly problem: Problem | undefined;
  readonly isLoading: boolean;
  /** Loads it again when the present load ends; the value stays until then. */
  reload(): void;
}

interface Loaded<T> {
  readonly key: string | null;
  readonly value: T | undefined;
  readonly problem: Problem | undefined;
  readonly isLoading: boolean;
}

export interface ResourceOptions {
  /** false: values are not cached, because they are large, such as the contents of files */
  readonly isCached?: boolean;
}

/** Loads a value. @param tell shows a part of the value, or its progress */
type Load<T> = (signal: AbortSignal, tell: (value: T) => void) => Promise<T>;

/**
 * The value that `load` returns for a key. It is loaded when the key changes, on `reload`, and when the appliance answers
 * again after a failure. A cached value is returned at once, and reloaded.
 * @param key names everything that `load` depends on; null: there is nothing to load
 */
export function useResource<T>(
  key: string | null,
  load: Load<T>,
  { isCached = true }: ResourceOptions = {},
): Resource<T> {
  const before = () => unloaded<T>(key, isCached);
  const [turn, setTurn] = useState(0);
  const [loaded, setLoaded] = useState<Loaded<T>>(before);
  const latest = useRef(load);
  latest.current = load;
  const isUnderWay = useRef(false);
  const isDue = useRef(false);
  const reload = useCallback(() => {
    // If each change aborted the load before it, frequent changes would let none of them finish.
    if (isUnderWay.current) isDue.current = true;
    else setTurn((count) => count + 1);
  }, []);

  useEffect(() => {
    if (key === null) return;
    const leaving = new AbortController();
    isUnderWay.current = true;
    isDue.current = false;
    const end = (next: (last: Loaded<T>) => Loaded<T>) => {
      if (leaving.signal.aborted) return;
      isUnderWay.current = false;
      setLoaded(next);
      if (isDue.current) reload();
    };
    setLoaded((last) => ({ ...(last.key === key ? last : before()), isLoading: true }));
    const tell = (value: T) => {
      if (!leaving.signal.aborted) setLoaded({ key, value, problem: undefined, isLoading: true });
    };
    latest.current(leaving.signal, tell).then(
      (value) => {
        if (isCached && !leaving.signal.aborted) cache(key, value);
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

  // Until the effect of a new key has run, `loaded` is that of the old key.
  const current = loaded.key === key ? loaded : before();
  const { value, problem, isLoading } = current;
  return { value, problem, isLoading, reload };
}

/** Loads a resource again whenever `sign` differs from the last one. */
export function useReload(sign: unknown, reload: () => void): void {
  const last = useRef(sign);
  useEffect(() => {
    if (Object.is(last.current, sign)) return;
    last.current = sign;
    reload();
  }, [sign]);
}

/** @see useResource, without the cache */
export function useLoaded<T>(key: string | null, load: Load<T>): Resource<T> {
  return useResource(key, load, { isCached: false });
}

function unloaded<T>(key: string | null, isCached: boolean): Loaded<T> {
  const value = key === null || !isCached ? undefined : (cached.get(key) as T | undefined);
  return { key, value, problem: undefined, isLoading: key !== null };
}
