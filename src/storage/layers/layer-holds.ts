import type { LayerId } from "../../domain/ids.ts";

/**
 * Layers that somebody in this process still reads, although their images may be deleted meanwhile: whoever
 * removes layers passes these over, and is told when the last reader is done.
 */
export class LayerHolds {
  readonly #counts = new Map<LayerId, number>();
  /** held layers that somebody wanted to remove */
  readonly #passedOver = new Set<LayerId>();
  readonly #listeners = new Set<(ids: readonly LayerId[]) => void>();

  /** Holds layers until disposal, which is idempotent. `LayerStore.hold` says when. */
  hold(ids: readonly LayerId[]): Disposable {
    for (const id of ids) this.#counts.set(id, (this.#counts.get(id) ?? 0) + 1);
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (!isHeld) return;
        isHeld = false;
        for (const id of ids) this.#release(id);
        const freed = ids.filter((id) => !this.isHeld(id) && this.#passedOver.delete(id));
        if (freed.length > 0) for (const listener of this.#listeners) listener(freed);
      },
    };
  }

  /** Layers that are held now. */
  get held(): LayerId[] {
    return [...this.#counts.keys()];
  }

  isHeld(id: LayerId): boolean {
    return this.#counts.has(id);
  }

  /** `isHeld` for who would remove the layer otherwise, and is told by `onFreed` when he can. */
  passOver(id: LayerId): boolean {
    const isHeld = this.isHeld(id);
    if (isHeld) this.#passedOver.add(id);
    return isHeld;
  }

  /** Tells of layers that were passed over and that nobody holds any more, until disposal. */
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
