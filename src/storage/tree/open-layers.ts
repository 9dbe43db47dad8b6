import { closeSync, openSync } from "node:fs";
import { ByteBudget } from "../byte-budget.ts";
import { IndexPages } from "../index/index-source.ts";
import { LayerIndex } from "../index/layer-index.ts";
import {
  ARCHIVE_LINKS_BYTES_MAX,
  INDEX_PAGES_BYTES_MAX,
  SMALL_INDEX_BYTES_MAX,
  SMALL_INDEXES_BYTES_MAX,
} from "../limits.ts";

/** Host paths of one layer's files. */
export interface LayerFiles {
  readonly disk: string;
  readonly index: string;
}

/** Holds a layer open until disposal, which is idempotent. */
export interface LayerLease extends Disposable {
  readonly index: LayerIndex;
  /** descriptor of the disk, for reading */
  readonly diskFd: number;
  /** Another lease of the same layer, even if the layer was forgotten. @throws Error after disposal */
  share(): LayerLease;
}

interface OpenLayer {
  readonly key: string;
  readonly index: LayerIndex;
  /** null until the disk is read: look-ups need only the index */
  diskFd: number | null;
  leaseCount: number;
}

/**
 * Keeps layers open between requests. The least recently used layer without a lease is closed first. In addition, small
 * indexes are kept in memory: a look-up in a deep image needs every one of up to a thousand layers, most of which are
 * small. Disposal closes all.
 */
export class OpenLayers implements Disposable {
  /** shared by the link tables of all archives */
  readonly linkBudget = new ByteBudget(ARCHIVE_LINKS_BYTES_MAX);
  readonly #countMax: number;
  readonly #pages = new IndexPages(INDEX_PAGES_BYTES_MAX);
  /** in the order of use, most recent last */
  readonly #layers = new Map<string, OpenLayer>();
  readonly #smallBytesMax: number;
  /** indexes in memory by path, in the order of use */
  readonly #small = new Map<string, LayerIndex>();
  #smallBytes = 0;

  /**
   * @param countMax limit of open layers
   * @param smallBytesMax limit of all small indexes in memory, in `bytes`
   */
  constructor(countMax: number, smallBytesMax: number = SMALL_INDEXES_BYTES_MAX) {
    this.#countMax = countMax;
    this.#smallBytesMax = smallBytesMax;
  }

  /** Calls `read` with the index of a layer, which must not be kept after the call. */
  readIndex<T>(files: LayerFiles, read: (index: LayerIndex) => T): T {
    const cached = this.#small.get(files.index);
    if (cached !== undefined) {
      this.#small.delete(files.index);
      this.#small.set(files.index, cached);
      return read(cached);
    }
    const bytesMax = Math.min(SMALL_INDEX_BYTES_MAX, this.#smallBytesMax);
    const small = this.#layers.has(files.index) ? null : LayerIndex.load(files.index, bytesMax);
    if (small !== null) {
      this.#cacheSmall(files.index, small);
      return read(small);
    }
    const layer = this.#touch(files);
    using _trimmed = { [Symbol.dispose]: () => this.#trim() };
    return read(layer.index);
  }

  #cacheSmall(path: string, index: LayerIndex): void {
    this.#small.set(path, index);
    this.#smallBytes += index.sizeBytes;
    for (const oldest of this.#small.keys()) {
      if (this.#smallBytes <= this.#smallBytesMax) return;
      this.#dropSmall(oldest);
    }
  }

  #dropSmall(path: string): void {
    const index = this.#small.get(path);
    if (index !== undefined && this.#small.delete(path)) this.#smallBytes -= index.sizeBytes;
  }

  acquire(files: LayerFiles): LayerLease {
    const layer = this.#touch(files);
    layer.diskFd ??= this.#openDisk(layer, files.disk);
    const lease = this.#lease(layer, layer.diskFd);
    this.#trim();
    return lease;
  }

  #openDisk(layer: OpenLayer, path: string): number {
    try {
      return openSync(path, "r");
    } catch (error) {
      this.#close(layer.key);
      throw error;
    }
  }

  /** Opens the layer if needed, and marks it as most recently used. */
  #touch(files: LayerFiles): OpenLayer {
    const layer = this.#layers.get(files.index) ?? this.#openIndex(files);
    this.#layers.delete(layer.key);
    this.#layers.set(layer.key, layer);
    return layer;
  }

  #openIndex({ index }: LayerFiles): OpenLayer {
    return { key: index, index: LayerIndex.open(index, this.#pages), diskFd: null, leaseCount: 0 };
  }

  /** Closes the layer, when its last lease ends at the latest, because its files are about to be removed. */
  forget(indexPath: string): void {
    this.#dropSmall(indexPath);
    this.#close(indexPath);
  }

  [Symbol.dispose](): void {
    for (const path of [...this.#small.keys(), ...this.#layers.keys()]) this.forget(path);
  }

  #close(indexPath: string): void {
    const layer = this.#layers.get(indexPath);
    if (layer === undefined) return;
    this.#layers.delete(indexPath);
    this.#closeIfUnused(layer);
  }

  #lease(layer: OpenLayer, diskFd: number): LayerLease {
    layer.leaseCount++;
    let isHeld = true;
    return {
      index: layer.index,
      diskFd,
      share: () => {
        if (!isHeld) throw new Error("lease of a layer is disposed");
        return this.#lease(layer, diskFd);
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
      this.#close(layer.key);
      if (this.#layers.size <= this.#countMax) return;
    }
  }

  #closeIfUnused(layer: OpenLayer): void {
    if (layer.leaseCount > 0 || this.#layers.get(layer.key) === layer) return;
    layer.index.close();
    if (layer.diskFd !== null) closeSync(layer.diskFd);
  }
}
