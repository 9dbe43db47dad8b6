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
  /** null until somebody wants what is on the disk: look-ups need the index alone */
  diskFd: number | null;
  leaseCount: number;
}

/**
 * Keeps the files of layers open between requests. A layer is closed when it was not used for longest and
 * nobody holds a lease of it, never under a reader. Small indexes are kept in memory beside that: a look-up in a deep
 * image asks every one of a thousand layers, and most of them are small. Disposal lets go of all of it.
 */
export class OpenLayers implements Disposable {
  /** of the links that archives of these layers remember */
  readonly linkBudget = new ByteBudget(ARCHIVE_LINKS_BYTES_MAX);
  readonly #countMax: number;
  readonly #pages = new IndexPages(INDEX_PAGES_BYTES_MAX);
  /** in the order of use, the latest last */
  readonly #layers = new Map<string, OpenLayer>();
  readonly #smallBytesMax: number;
  /** in memory, by path, in the order of use */
  readonly #small = new Map<string, LayerIndex>();
  #smallBytes = 0;

  /**
   * @param countMax layers that stay open
   * @param smallBytesMax of small indexes in memory
   */
  constructor(countMax: number, smallBytesMax: number = SMALL_INDEXES_BYTES_MAX) {
    this.#countMax = countMax;
    this.#smallBytesMax = smallBytesMax;
  }

  /** what small indexes take in memory, as files */
  get smallBytes(): number {
    return this.#smallBytes;
  }

  /** What `read` finds in the index of a layer. The index is not to be kept. */
  look<T>(files: LayerFiles, read: (index: LayerIndex) => T): T {
    const known = this.#small.get(files.index);
    if (known !== undefined) {
      this.#small.delete(files.index);
      this.#small.set(files.index, known);
      return read(known);
    }
    const bytesMax = Math.min(SMALL_INDEX_BYTES_MAX, this.#smallBytesMax);
    const small = this.#layers.has(files.index) ? null : LayerIndex.load(files.index, bytesMax);
    if (small !== null) {
      this.#keep(files.index, small);
      return read(small);
    }
    const layer = this.#use(files);
    using _trimmed = { [Symbol.dispose]: () => this.#trim() };
    return read(layer.index);
  }

  #keep(path: string, index: LayerIndex): void {
    this.#small.set(path, index);
    this.#smallBytes += index.sizeBytes;
    for (const oldest of this.#small.keys()) {
      if (this.#smallBytes <= this.#smallBytesMax) return;
      this.#drop(oldest);
    }
  }

  #drop(path: string): void {
    const index = this.#small.get(path);
    if (index !== undefined && this.#small.delete(path)) this.#smallBytes -= index.sizeBytes;
  }

  /** layers that stay open for the next reader */
  get count(): number {
    return this.#layers.size;
  }

  acquire(files: LayerFiles): LayerLease {
    const layer = this.#use(files);
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

  /** The layer, as the one that was used last. */
  #use(files: LayerFiles): OpenLayer {
    const layer = this.#layers.get(files.index) ?? this.#opened(files);
    this.#layers.delete(layer.key);
    this.#layers.set(layer.key, layer);
    return layer;
  }

  #opened({ index }: LayerFiles): OpenLayer {
    return { key: index, index: LayerIndex.open(index, this.#pages), diskFd: null, leaseCount: 0 };
  }

  /** Closes the layer once its last reader is done: its files are about to be removed. */
  forget(indexPath: string): void {
    this.#drop(indexPath);
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
