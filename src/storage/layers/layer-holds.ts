import type { LayerId } from "../../domain/ids.ts";

/**
 * Layers that this process still reads although their images may be deleted. A remover skips held layers, and listeners
 * learn when the last hold ends.
 */
export class LayerHolds {
  readonly #counts = new Map<LayerId, number>();
  /** held layers whose removal was deferred */
  readonly #deferred = new Set<LayerId>();
  readonly #listeners = new Set<(ids: readonly LayerId[]) => void>();

  /** Holds layers until disposal, which is idempotent. `LayerStore.hold` states when it may be called. */
  hold(ids: readonly LayerId[]): Disposable {
    for (const id of ids) this.#counts.set(id, (this.#counts.get(id) ?? 0) + 1);
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (!isHeld) return;
        isHeld = false;
        for (const id of ids) this.#release(id);
        const freed = ids.filter((id) => !this.isHeld(id) && this.#deferred.delete(id));
        if (freed.length > 0) for (const listener of this.#listeners) listener(freed);
      },
    };
  }

  /** The layers that are held now. */
  get held(): LayerId[] {
    return [...this.#counts.keys()];
  }

  isHeld(id: LayerId): boolean {
    return this.#counts.has(id);
  }

  /** Returns `isHeld`. When it is true, the caller must not remove the layer, and `onFreed` reports when it can. */
  deferIfHeld(id: LayerId): boolean {
    const isHeld = this.isHeld(id);
    if (isHeld) this.#deferred.add(id);
    return isHeld;
  }

  /** Calls `listener` with layers whose deferred removal is possible now, until disposal. */
  onFreed(listener: (ids: readonly LayerId[]) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  #release(id: LayerId): void {
    const count = this.#counts.get(id) ?? 0;
    if (count > 1) this.#counts.set(id, count - 1);
    else this.#counts.delete(id);
  }
}
