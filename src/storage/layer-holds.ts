import type { LayerId } from "../domain/ids.ts";

/**
 * Layers that somebody in this process still reads, although their images may be deleted meanwhile: whoever
 * removes layers passes these over, and a later pass finds them.
 */
export class LayerHolds {
  readonly #counts = new Map<LayerId, number>();

  /** Holds layers until disposal, which is idempotent. Take it in the turn in which their rows were read. */
  hold(ids: readonly LayerId[]): Disposable {
    for (const id of ids) this.#counts.set(id, (this.#counts.get(id) ?? 0) + 1);
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (!isHeld) return;
        isHeld = false;
        for (const id of ids) this.#release(id);
      },
    };
  }

  isHeld(id: LayerId): boolean {
    return this.#counts.has(id);
  }

  #release(id: LayerId): void {
    const count = this.#counts.get(id) ?? 0;
    if (count > 1) this.#counts.set(id, count - 1);
    else this.#counts.delete(id);
  }
}

/** The holds of this process. */
export const sharedLayerHolds = new LayerHolds();
