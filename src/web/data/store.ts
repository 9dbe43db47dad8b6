import { useEffect, useState } from "preact/hooks";

/** A value that components watch. */
export interface Store<T> {
  get(): T;
  set(value: T): void;
  /** @param listen is called after each change of the value @returns a function that ends it */
  subscribe(listen: () => void): () => void;
}

export function createStore<T>(initial: T): Store<T> {
  let value = initial;
  const listeners = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listen of [...listeners]) listen();
    },
    subscribe(listen) {
      listeners.add(listen);
      return () => listeners.delete(listen);
    },
  };
}

/** The value of a store; the component is redrawn when it changes. */
export function useStore<T>(store: Store<T>): T {
  const [, redraw] = useState(0);
  const seen = store.get();
  useEffect(() => {
    // It may have changed between the drawing and this effect.
    if (!Object.is(store.get(), seen)) redraw((count) => count + 1);
    return store.subscribe(() => redraw((count) => count + 1));
  }, [store]);
  return seen;
}
