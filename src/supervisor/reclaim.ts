import { join } from "node:path";
import type { Database } from "../db/database.ts";
import type { Orm } from "../db/drizzle-client.ts";
import { type ExpiryBounds, expiredImages, previewExpiry, unreferencedLayers } from "../db/expiry.ts";
import { deleteFilesUnusedSince, type FileRow, isBlobReferenced, referencedBlobs } from "../db/files.ts";
import { imagesBeingRemoved } from "../db/images/images.ts";
import { existingLayers } from "../db/images/layers.ts";
import { allMergedLayers, deleteMergedLayer, deleteMergedLayersUnusedSince } from "../db/images/merged-layers.ts";
import { deleteExpiredImages, deleteUnreferencedLayers, type RemovedImage, removeMore } from "../db/removal.ts";
import { deleteMemoryImage, type MemoryImageRow, memoryImagesBefore } from "../db/sandboxes/memory-images.ts";
import type { ImageId, LayerId } from "../domain/ids.ts";
import type { Reclaimed } from "../domain/operator/reclaimed.ts";
import type { Log } from "../log.ts";
import { blobBytes, listBlobs, removeBlob } from "../storage/blobs.ts";
import type { LayerStore } from "../storage/layers/layer-store.ts";
import { batches, type DataLayout } from "../storage/layout.ts";
import { removeTrees } from "../system/scratch.ts";
import { ownTurn } from "../system/turns.ts";
import type { AccountChanges } from "./account-changes.ts";

/** Merged layers that were not used for this long are removed. They are made again when they are needed. */
const MERGED_TTL_MS = 7 * 86_400_000;
/** Rows that one transaction removes: it must not block the event loop. */
const BATCH_COUNT = 20;
/** Rows that one search returns. */
const FOUND_COUNT_MAX = 5000;
const NEVER = new AbortController().signal;

export interface ReclaimOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly log: Log;
  readonly clock: () => number;
  /** retention of a file that no instance uses, in `milliseconds`; null: for ever */
  readonly filesTtlMs: number | null;
  /** retention of an image without a tag after its last use, in `milliseconds`; null: for ever */
  readonly untaggedTtlMs: number | null;
  /** retention of the memory of a paused sandbox, in `milliseconds` */
  readonly memoryTtlMs: number;
  /** receives the removed images; absent: no client can follow changes */
  readonly changes?: AccountChanges;
}

/** The objects whose rows one transaction deleted. */
interface DeletedRows {
  readonly images?: readonly RemovedImage[];
  readonly layers?: readonly LayerId[];
  /** layers that another transaction is to delete, if nothing refers to them */
  readonly left?: readonly LayerId[];
  readonly files?: readonly FileRow[];
}

/**
 * Removes expired and unreferenced objects, and returns their number and size. Layers that are being read are removed
 * when their last reader is done. With `dryRun` it removes nothing.
 */
export async function reclaim(
  options: ReclaimOptions,
  { dryRun, signal = NEVER }: { readonly dryRun: boolean; readonly signal?: AbortSignal },
): Promise<Reclaimed> {
  return dryRun ? await preview(options) : await new Reclaiming(options, signal).run();
}

function boundsOf({ clock, untaggedTtlMs, filesTtlMs }: ReclaimOptions): ExpiryBounds {
  const now = clock();
  return {
    imagesBeforeMs: untaggedTtlMs === null ? null : now - untaggedTtlMs,
    mergedBeforeMs: now - MERGED_TTL_MS,
    filesBeforeMs: filesTtlMs === null ? null : now - filesTtlMs,
  };
}

async function preview(options: ReclaimOptions): Promise<Reclaimed> {
  const { images, layers, files, blobs } = await previewExpiry(options.db, boundsOf(options), options.layers.held);
  const memory = expiredMemory(options);
  let fileBytes = 0;
  for (const sha256 of blobs) fileBytes += await releaseBlob(options, sha256, true);
  return {
    ...{ images, layers: layers.length, layerBytes: await sizeOf(options, layers), files, fileBytes },
    memoryImages: memory.length,
    memoryImageBytes: memory.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0),
  };
}

function expiredMemory({ db, clock, memoryTtlMs }: ReclaimOptions): MemoryImageRow[] {
  return memoryImagesBefore(db, clock() - memoryTtlMs);
}

const NOTHING = {
  ...{ images: 0, layers: 0, layerBytes: 0, files: 0, fileBytes: 0 },
  ...{ memoryImages: 0, memoryImageBytes: 0 },
} satisfies Reclaimed;

/** One pass. A thread searches for the rows to delete; they are then deleted in small transactions. */
class Reclaiming {
  readonly #options: ReclaimOptions;
  readonly #signal: AbortSignal;
  readonly #total = { ...NOTHING };

  constructor(options: ReclaimOptions, signal: AbortSignal) {
    this.#options = options;
    this.#signal = signal;
  }

  async run(): Promise<Reclaimed> {
    const { db, layers } = this.#options;
    const isHeld = (id: LayerId) => layers.deferIfHeld(id);
    const { imagesBeforeMs, mergedBeforeMs, filesBeforeMs } = boundsOf(this.#options);
    // It may be all that keeps an image.
    await this.#removeMemory();
    // A process that was killed may have left unfinished removals.
    await finishRemovals(db, this.#signal);
    if (imagesBeforeMs !== null) {
      await this.#removeFound(
        (limit) => expiredImages(db, imagesBeforeMs, limit),
        (tx, ids) => {
          const images = deleteExpiredImages(tx, ids, imagesBeforeMs);
          const tops = images.map(({ layerId }) => layerId);
          return { images, ...deleteUnreferencedLayers(tx, tops, isHeld) };
        },
      );
    }
    await this.#removeBatches((tx) => ({
      layers: deleteMergedLayersUnusedSince(tx, mergedBeforeMs, { limit: BATCH_COUNT, isHeld }),
    }));
    await this.#removeFound(
      (limit) => unreferencedLayers(db, limit),
      (tx, ids) => deleteUnreferencedLayers(tx, ids, isHeld),
    );
    if (filesBeforeMs !== null) {
      await this.#removeBatches((tx) => ({ files: deleteFilesUnusedSince(tx, filesBeforeMs, BATCH_COUNT) }));
    }
    return this.#total;
  }

  async #removeMemory(): Promise<void> {
    const { db, layout } = this.#options;
    for (const image of expiredMemory(this.#options)) {
      // A resume may have consumed it.
      if (!db.transaction(() => deleteMemoryImage(db, image))) continue;
      await removeTrees([join(layout.memoryImages, image.id)]);
      this.#total.memoryImages += 1;
      this.#total.memoryImageBytes += image.sizeBytes;
    }
  }

  /** Removes the rows that `find` returns until it returns no more, or none of them can be removed now. */
  async #removeFound<Id>(
    find: (limit: number) => Promise<Id[]>,
    deleteRows: (tx: Orm, ids: readonly Id[]) => DeletedRows,
  ): Promise<void> {
    for (let full = true; full && !this.#signal.aborted; ) {
      const rowIds = await find(FOUND_COUNT_MAX);
      let count = 0;
      for await (const ids of batches(rowIds, BATCH_COUNT)) {
        if (!this.#signal.aborted) count += await this.#remove((tx) => deleteRows(tx, ids));
      }
      full = rowIds.length === FOUND_COUNT_MAX && count > 0;
    }
  }

  /** Removes batches of rows that `deleteRows` finds itself, because an index makes that quick. */
  async #removeBatches(deleteRows: (tx: Orm) => DeletedRows): Promise<void> {
    for (let count = 1; count > 0 && !this.#signal.aborted; ) count = await this.#remove(deleteRows);
  }

  /** Deletes rows, removes the files that have no row left, and returns the number of rows. */
  async #remove(deleteRows: (tx: Orm) => DeletedRows): Promise<number> {
    const { db, changes } = this.#options;
    const { images = [], layers = [], left = [], files = [] } = db.transaction(deleteRows);
    for (const { accountId, id } of images) changes?.report(accountId, { type: "deleted", id });
    await finishRemovals(db, this.#signal);
    this.#total.images += images.length;
    const removed = await removeLayers(this.#options, layers);
    const below = await releaseAll(this.#options, left, this.#signal);
    this.#total.layers += removed.count + below.count;
    this.#total.layerBytes += removed.bytes + below.bytes;
    this.#total.files += files.length;
    for (const sha256 of new Set(files.map((file) => file.sha256))) {
      if (!isBlobReferenced(db.orm, sha256)) this.#total.fileBytes += await releaseBlob(this.#options, sha256, false);
    }
    return images.length + layers.length + files.length;
  }
}

/**
 * Removes merged layers that miss a file, as they do after the restore of a data directory: no chain can be attached
 * through them. Nothing may attach or merge layers meanwhile.
 */
export async function removeBrokenMergedLayers({
  db,
  layers,
}: Pick<ReclaimOptions, "db" | "layers">): Promise<LayerId[]> {
  const broken: LayerId[] = [];
  for await (const ids of batches(allMergedLayers(db))) {
    for (const id of ids) if (!(await layers.has(id))) broken.push(id);
  }
  for (const id of broken) {
    deleteMergedLayer(db, id);
    await layers.remove(id);
  }
  return broken;
}

/**
 * Removes the files of layers and uploads that no row names, which a process leaves when it is killed. Nothing may make
 * layers meanwhile, because a layer without a row yet looks the same.
 */
export async function reclaimOrphans(
  { db, layout, layers }: Pick<ReclaimOptions, "db" | "layout" | "layers">,
  { dryRun, signal }: { readonly dryRun: boolean; readonly signal?: AbortSignal },
): Promise<Reclaimed> {
  const orphans = new Set<LayerId>();
  let layerBytes = 0;
  for await (const ids of layers.batches()) {
    signal?.throwIfAborted();
    const existing = existingLayers(db, ids);
    const unknown = ids.filter((id) => !existing.has(id) && !orphans.has(id));
    for (const id of unknown) orphans.add(id);
    layerBytes += dryRun ? await sizeOf({ layers }, unknown) : (await removeLayers({ layers }, unknown)).bytes;
  }
  let files = 0;
  let fileBytes = 0;
  for await (const contents of batches(await listBlobs(layout))) {
    signal?.throwIfAborted();
    const referenced = referencedBlobs(db, contents);
    const unknown = contents.filter((sha256) => !referenced.has(sha256));
    files += unknown.length;
    for (const sha256 of unknown) fileBytes += await releaseBlob({ db, layout }, sha256, dryRun);
  }
  return { ...NOTHING, layers: orphans.size, layerBytes, files, fileBytes };
}

/**
 * Removes the rest of a deleted image: rows, and layers that nothing else refers to. It is safe while there are running
 * instances, captures and readers. It never throws, because the image is deleted already: when something cannot be removed,
 * on a full disk for example, the next pass removes it.
 * @param owner owners take turns
 */
export async function releaseImage(
  options: Pick<ReclaimOptions, "db" | "layers" | "log">,
  image: Pick<RemovedImage, "id" | "layerId">,
  owner?: unknown,
): Promise<void> {
  try {
    await finishRemoval(options.db, image.id, owner);
    await releaseAll(options, [image.layerId]);
  } catch (error) {
    options.log.warn("cannot remove the layers of a deleted image yet: the next pass tries again", { error });
  }
}

/**
 * Removes the rows that are left of a deleted image, in turns of the event loop of its own.
 * @param owner owners take turns
 * @throws the reason of `signal`; rows that were removed before stay removed
 */
async function finishRemoval(db: Database, id: ImageId, owner?: unknown, signal: AbortSignal = NEVER): Promise<void> {
  while (!removeMore(db, id)) {
    await db.checkpointed;
    await ownTurn(owner);
    signal.throwIfAborted();
  }
}

/** Removes the rows that are left of all deleted images. @throws the reason of `signal` */
export async function finishRemovals(db: Database, signal: AbortSignal = NEVER): Promise<void> {
  for (const id of imagesBeingRemoved(db)) await finishRemoval(db, id, undefined, signal);
}

/** Removes the layers of several deleted images, until `signal` aborts. */
async function releaseAll(
  { db, layers }: Pick<ReclaimOptions, "db" | "layers">,
  tops: readonly LayerId[],
  signal: AbortSignal = NEVER,
): Promise<RemovedLayers> {
  const total = { count: 0, bytes: 0 };
  for (let left = tops; left.length > 0 && !signal.aborted; ) {
    const part = db.transaction((tx) => deleteUnreferencedLayers(tx, left, (id) => layers.deferIfHeld(id)));
    const { count, bytes } = await removeLayers({ layers }, part.layers);
    total.count += count;
    total.bytes += bytes;
    left = part.left;
  }
  return total;
}

/**
 * Removes layers of deleted images as soon as their last reader is done. Disposal stops that, and waits for a removal
 * that is under way.
 */
export function releaseWhenRead(options: Pick<ReclaimOptions, "db" | "layers" | "log">): AsyncDisposable {
  let work: Promise<void> = Promise.resolve();
  const listening = options.layers.onFreed((ids) => {
    work = work
      .then(async () => void (await releaseAll(options, ids)))
      .catch((error: unknown) => options.log.warn("cannot remove layers after their last read", { error }));
  });
  return {
    [Symbol.asyncDispose]: async () => {
      listening[Symbol.dispose]();
      await work;
    },
  };
}

async function sizeOf({ layers }: Pick<ReclaimOptions, "layers">, ids: readonly LayerId[]): Promise<number> {
  let bytes = 0;
  for (const id of ids) bytes += await layers.sizeBytes(id);
  return bytes;
}

/** The number of layers that were removed, and their size. */
interface RemovedLayers {
  readonly count: number;
  readonly bytes: number;
}

async function removeLayers(options: Pick<ReclaimOptions, "layers">, ids: readonly LayerId[]): Promise<RemovedLayers> {
  const bytes = await sizeOf(options, ids);
  for (const id of ids) await options.layers.remove(id);
  return { count: ids.length, bytes };
}

async function releaseBlob(
  { db, layout }: Pick<ReclaimOptions, "db" | "layout">,
  sha256: string,
  dryRun: boolean,
): Promise<number> {
  if (dryRun) return await blobBytes(layout, sha256);
  return await removeBlob(layout, sha256, () => isBlobReferenced(db.orm, sha256));
}
