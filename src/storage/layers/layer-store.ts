import { ApiError } from "../../domain/errors.ts";
import type { LayerId } from "../../domain/ids.ts";
import { removedUnlessKept } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import type { DataLayout } from "../layout.ts";
import { OPEN_LAYERS_COUNT_MAX } from "../limits.ts";
import type { Cancellation } from "../pacer.ts";
import { ImageTree } from "../tree/image-tree.ts";
import { type LayerFiles, OpenLayers } from "../tree/open-layers.ts";
import { ext4Uuid } from "./disk-uuid.ts";
import { LayerHolds } from "./layer-holds.ts";
import { hasLayerFiles, indexPath, layerBatches, layerBytes, layerPath, publishLayer, removeLayer } from "./layers.ts";
import type { LayerParts, ListedDisk, StagedLayer } from "./staged-layer.ts";

/**
 * A chain of layers, held until disposal even when their images are deleted. The paths of layers are available only here,
 * so every caller that has a path also holds the layer.
 */
export class LayerChain implements Disposable {
  /** lowest first */
  readonly ids: readonly LayerId[];
  readonly #layout: DataLayout;
  readonly #held: Disposable;
  readonly #openLayers: OpenLayers;
  #files: readonly LayerFiles[] | null = null;
  #isDisposed = false;

  /** Only a LayerStore creates chains. */
  constructor(
    ids: readonly LayerId[],
    parts: { readonly layout: DataLayout; readonly held: Disposable; readonly openLayers: OpenLayers },
  ) {
    this.ids = ids;
    this.#layout = parts.layout;
    this.#held = parts.held;
    this.#openLayers = parts.openLayers;
  }

  /** Paths of the disks and indexes, lowest first; valid until disposal. @throws Error after disposal */
  get files(): readonly LayerFiles[] {
    if (this.#isDisposed) throw new Error("these layers are no longer held");
    this.#files ??= this.ids.map((id) => ({ disk: layerPath(this.#layout, id), index: indexPath(this.#layout, id) }));
    return this.#files;
  }

  /** The open layers of the store, shared by all readers. */
  get openLayers(): OpenLayers {
    return this.#openLayers;
  }

  /**
   * The file system that the layers form together; there must be at least one layer. Nothing is booted or mounted.
   * @param cancellation ends all work on the tree
   */
  tree(cancellation: Cancellation): ImageTree {
    return new ImageTree(this.files, this.#openLayers, cancellation);
  }

  /** Idempotent. */
  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.#held[Symbol.dispose]();
  }
}

export interface LayerStoreOptions {
  readonly layout: DataLayout;
  /** The chain of layers up to `topId`, lowest first; empty when there is no such layer. */
  readonly chainOf: (topId: LayerId) => readonly LayerId[];
}

/**
 * The layers of a data directory: opens, holds, publishes and removes them. A process has only one store, because holds
 * protect layers only from removers that use the same store.
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

  /** Holds a layer and all layers below it. */
  open(topId: LayerId): LayerChain {
    return this.hold(this.#chainOf(topId));
  }

  /** Holds layers that are sure to exist: their rows were read in this turn of the event loop, or they are held. */
  hold(ids: readonly LayerId[]): LayerChain {
    return new LayerChain(ids, { layout: this.#layout, held: this.#holds.hold(ids), openLayers: this.#openLayers });
  }

  /**
   * Moves a disk and its index to the layers. Disposal of the result removes them again, unless `keep` is called: no row
   * refers to the layer yet. Nothing may write to the disk any more.
   * @param below the layer on which it is to stand
   * @throws ApiError `conflict` when a layer below has the UUID of the disk: forks of a machine with its memory keep that of its
   *   scratch, and two of them must never stand in one chain
   */
  async publish({ diskPath, indexPath }: LayerParts, listed: ListedDisk, below?: LayerId): Promise<StagedLayer> {
    if (below !== undefined) await this.#requireOwnUuid(diskPath, below);
    const id = Bun.randomUUIDv7() as LayerId;
    const sizeBytes = await allocatedBytes(diskPath);
    await publishLayer(this.#layout, { id, temporaryDisk: diskPath, temporaryIndex: indexPath });
    return { id, ...listed, sizeBytes, ...removedUnlessKept(() => this.remove(id)) };
  }

  async #requireOwnUuid(diskPath: string, below: LayerId): Promise<void> {
    const own = await ext4Uuid(diskPath);
    if (own === null) return;
    for (const layer of this.#chainOf(below)) {
      if ((await ext4Uuid(layerPath(this.#layout, layer))) !== own) continue;
      throw new ApiError("conflict", "the disk has the identity of a layer below it", { layer });
    }
  }

  /** Removes the files of a layer without row and holds. Readers that have them open can continue. */
  async remove(id: LayerId): Promise<void> {
    this.#openLayers.forget(indexPath(this.#layout, id));
    await removeLayer(this.#layout, id);
  }

  /** The layers that are held now. */
  get held(): LayerId[] {
    return this.#holds.held;
  }

  isHeld(id: LayerId): boolean {
    return this.#holds.isHeld(id);
  }

  /** Returns `isHeld`. When it is true, the caller must not remove the layer, and `onFreed` reports when it can. */
  deferIfHeld(id: LayerId): boolean {
    return this.#holds.deferIfHeld(id);
  }

  /** Calls `listener` with layers whose deferred removal is possible now, until disposal. */
  onFreed(listener: (ids: readonly LayerId[]) => void): Disposable {
    return this.#holds.onFreed(listener);
  }

  /** Whether both files of a layer exist. */
  async has(id: LayerId): Promise<boolean> {
    return await hasLayerFiles(this.#layout, id);
  }

  /** Space of the files of a layer on the host's disk, in `bytes`. */
  async sizeBytes(id: LayerId): Promise<number> {
    return await layerBytes(this.#layout, id);
  }

  /** Ids of all layers that have a disk or an index, in batches. An id may occur twice. */
  batches(): AsyncGenerator<LayerId[]> {
    return layerBatches(this.#layout);
  }

  /** Closes the layers without readers. */
  [Symbol.dispose](): void {
    this.#openLayers[Symbol.dispose]();
  }
}
