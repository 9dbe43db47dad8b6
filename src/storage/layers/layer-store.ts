import type { LayerId } from "../../domain/ids.ts";
import { removedUnlessKept } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import type { DataLayout } from "../layout.ts";
import { OPEN_LAYERS_COUNT_MAX } from "../limits.ts";
import type { Wanted } from "../pacer.ts";
import { ImageTree } from "../tree/image-tree.ts";
import { LayerHolds } from "./layer-holds.ts";
import { hasLayerFiles, indexPath, layerBatches, layerBytes, layerPath, publishLayer, removeLayer } from "./layers.ts";
import { type LayerFiles, OpenLayers } from "./open-layers.ts";
import type { LayerParts, ListedDisk, StagedLayer } from "./staged-layer.ts";

/**
 * Layers that stay until disposal, also when the images that they are of are deleted. Nothing else leads to the files of
 * a layer, so that whoever has them keeps them.
 */
export class LayerChain implements Disposable {
  /** the lowest first */
  readonly ids: readonly LayerId[];
  readonly #layout: DataLayout;
  readonly #held: Disposable;
  readonly #openLayers: OpenLayers;
  #files: readonly LayerFiles[] | null = null;
  #isDisposed = false;

  /** Made by a LayerStore only. */
  constructor(
    ids: readonly LayerId[],
    parts: { readonly layout: DataLayout; readonly held: Disposable; readonly openLayers: OpenLayers },
  ) {
    this.ids = ids;
    this.#layout = parts.layout;
    this.#held = parts.held;
    this.#openLayers = parts.openLayers;
  }

  /** Where the disks and the indexes are, the lowest first; to be used until disposal. @throws Error after that */
  get files(): readonly LayerFiles[] {
    if (this.#isDisposed) throw new Error("these layers are not held any more");
    this.#files ??= this.ids.map((id) => ({ disk: layerPath(this.#layout, id), index: indexPath(this.#layout, id) }));
    return this.#files;
  }

  /** The files of layers that are open, of all readers of the store. */
  get openLayers(): OpenLayers {
    return this.#openLayers;
  }

  /**
   * The file system that the layers make; there must be at least one. Nothing is booted or mounted.
   * @param wanted ends everything that is done with the tree as soon as it throws
   */
  tree(wanted: Wanted): ImageTree {
    return new ImageTree(this.files, this.#openLayers, wanted);
  }

  /** Idempotent. */
  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.#held[Symbol.dispose]();
  }
}

export interface LayerStoreOptions {
  readonly layout: DataLayout;
  /** Gives the layers that one stands on, the lowest first and itself last; none when there is no such layer. */
  readonly chainOf: (topId: LayerId) => readonly LayerId[];
}

/**
 * The layers of a data directory: opens and holds them, publishes and removes them. There is one in a process, for holds
 * keep the layers from others that remove by the same store.
 */
export class LayerStore implements Disposable {
  readonly #layout: DataLayout;
  readonly #chainOf: LayerStoreOptions["chainOf"];
  readonly #holds = new LayerHolds();
  readonly #openLayers = new OpenLayers(OPEN_LAYERS_COUNT_MAX);

  constructor({ layout, chainOf }: LayerStoreOptions) {
    this.#layout = layout;
    this.#chainOf = chainOf;
  }

  /** Everything that a layer stands on, and itself. */
  open(topId: LayerId): LayerChain {
    return this.hold(this.#chainOf(topId));
  }

  /** Holds layers that are known to be there in this turn: their rows were read in it, or somebody holds them. */
  hold(ids: readonly LayerId[]): LayerChain {
    return new LayerChain(ids, { layout: this.#layout, held: this.#holds.hold(ids), openLayers: this.#openLayers });
  }

  /**
   * Makes a listed disk and its index a layer, which is removed by disposal unless it is kept: no row refers to it yet.
   * The disk must have no writer any more.
   */
  async publish({ diskPath, indexPath }: LayerParts, listed: ListedDisk): Promise<StagedLayer> {
    const id = Bun.randomUUIDv7() as LayerId;
    const sizeBytes = await allocatedBytes(diskPath);
    await publishLayer(this.#layout, { id, temporaryDisk: diskPath, temporaryIndex: indexPath });
    return { id, ...listed, sizeBytes, ...removedUnlessKept(() => this.remove(id)) };
  }

  /** Removes the files of a layer, which must have no row and no holder. Who has them open reads on undisturbed. */
  async remove(id: LayerId): Promise<void> {
    this.#openLayers.forget(indexPath(this.#layout, id));
    await removeLayer(this.#layout, id);
  }

  /** Layers that somebody holds now. */
  get held(): LayerId[] {
    return this.#holds.held;
  }

  isHeld(id: LayerId): boolean {
    return this.#holds.isHeld(id);
  }

  /** `isHeld` for who would remove the layer otherwise, and is told by `onFreed` when that can be done. */
  passOver(id: LayerId): boolean {
    return this.#holds.passOver(id);
  }

  /** Tells of layers that were passed over and that nobody holds any more, until disposal. */
  onFreed(listener: (ids: readonly LayerId[]) => void): Disposable {
    return this.#holds.onFreed(listener);
  }

  /** Whether both the disk and the index of a layer are there. */
  async has(id: LayerId): Promise<boolean> {
    return await hasLayerFiles(this.#layout, id);
  }

  /** What the disk and the index of a layer take on the host's disk, in `bytes`. */
  async sizeBytes(id: LayerId): Promise<number> {
    return await layerBytes(this.#layout, id);
  }

  /** Ids of all layers of which there is a disk or an index, some at a time; one can come twice. */
  batches(): AsyncGenerator<LayerId[]> {
    return layerBatches(this.#layout);
  }

  /** Closes what is open and not being read. */
  [Symbol.dispose](): void {
    this.#openLayers[Symbol.dispose]();
  }
}
