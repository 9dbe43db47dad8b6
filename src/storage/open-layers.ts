import { closeSync, openSync } from "node:fs";
import { LayerIndex } from "./layer-index.ts";
import { OPEN_LAYERS_COUNT_MAX } from "./limits.ts";

/** Host paths of one layer. */
export interface LayerFiles {
  readonly disk: string;
  readonly index: string;
}

/** An open layer, for as long as it is not disposed; disposal is idempotent. */
export interface LayerLease extends Disposable {
  readonly index: LayerIndex;
  /** open for reading */
  readonly diskFd: number;
  /** Another lease of the same layer, also when the layer was forgotten meanwhile; not after disposal. */
  share(): LayerLease;
}

interface OpenLayer {
  readonly key: string;
  readonly index: LayerIndex;
  readonly diskFd: number;
  leaseCount: number;
}

/**
 * Keeps the files of layers open between requests. A layer is closed when it was not used for longest and
 * nobody holds a lease of it, never under a reader.
 */
export class OpenLayers {
  readonly #countMax: number;
  /** in the order of use, the latest last */
  readonly #layers = new Map<string, OpenLayer>();

  constructor(countMax: number) {
    this.#countMax = countMax;
  }

  /** layers that stay open for the next reader */
  get count(): number {
    return this.#layers.size;
  }

  acquire(files: LayerFiles): LayerLease {
    const layer = this.#layers.get(files.index) ?? openLayer(files);
    this.#layers.delete(layer.key);
    this.#layers.set(layer.key, layer);
    const lease = this.#lease(layer);
    this.#trim();
    return lease;
  }

  /** Closes the layer once its last reader is done: its files are about to be removed. */
  forget(indexPath: string): void {
    const layer = this.#layers.get(indexPath);
    if (layer === undefined) return;
    this.#layers.delete(indexPath);
    this.#closeIfUnused(layer);
  }

  #lease(layer: OpenLayer): LayerLease {
    layer.leaseCount++;
    let isHeld = true;
    return {
      index: layer.index,
      diskFd: layer.diskFd,
      share: () => {
        if (!isHeld) throw new Error("lease of a layer is disposed");
        return this.#lease(layer);
      },
      [Symbol.dispose]: () => {
        if (!isHeld) return;
        isHeld = false;
        layer.leaseCount--;
        this.#closeIfUnused(layer);
        this.#trim();
      },
    };
  }

  #trim(): void {
    if (this.#layers.size <= this.#countMax) return;
    for (const layer of this.#layers.values()) {
      if (layer.leaseCount > 0) continue;
      this.forget(layer.key);
      if (this.#layers.size <= this.#countMax) return;
    }
  }

  #closeIfUnused(layer: OpenLayer): void {
    if (layer.leaseCount > 0 || this.#layers.get(layer.key) === layer) return;
    layer.index.close();
    closeSync(layer.diskFd);
  }
}

function openLayer(files: LayerFiles): OpenLayer {
  const index = LayerIndex.open(files.index);
  try {
    return { key: files.index, index, diskFd: openSync(files.disk, "r"), leaseCount: 0 };
  } catch (error) {
    index.close();
    throw error;
  }
}

/** The layers of this process. Layers are immutable and their ids are never used twice. */
export const sharedOpenLayers = new OpenLayers(OPEN_LAYERS_COUNT_MAX);
