import type { Database, Orm } from "../db/database.ts";
import { type ExpiryBounds, expiredImages, foresee, unreferencedLayers } from "../db/expiry.ts";
import { deleteFilesUnusedSince, type FileRow, isBlobReferenced, referencedBlobs } from "../db/files.ts";
import { existingLayers } from "../db/layers.ts";
import { allMergedLayers, deleteMergedLayer, deleteMergedLayersUnusedSince } from "../db/merged-layers.ts";
import { deleteExpiredImages, deleteUnreferencedLayers } from "../db/removal.ts";
import type { LayerId } from "../domain/ids.ts";
import type { Reclaimed } from "../domain/reclaimed.ts";
import type { Log } from "../log.ts";
import { blobBytes, listBlobs, removeBlob } from "../storage/blobs.ts";
import type { LayerStore } from "../storage/layers/layer-store.ts";
import { batches, type DataLayout } from "../storage/layout.ts";

/** Merged layers that nobody used for so long are made again when somebody does. */
const MERGED_TTL_MS = 7 * 86_400_000;
/** Rows that one transaction removes: it must not hold the event loop. */
const BATCH_COUNT = 20;
/** Rows that are found at a time. */
const FOUND_COUNT_MAX = 5000;
const NEVER = new AbortController().signal;

export interface ReclaimOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly log: Log;
  readonly clock: () => number;
  /** how long a file that no instance uses is kept, in `milliseconds`; null: for ever */
  readonly filesTtlMs: number | null;
  /** how long an image without a tag is kept after its last use, in `milliseconds`; null: for ever */
  readonly untaggedTtlMs: number | null;
}

/** What one transaction forgot. */
interface Forgotten {
  readonly images?: number;
  readonly layers?: readonly LayerId[];
  readonly files?: readonly FileRow[];
}

/**
 * Removes what is past its time and what nothing refers to; layers that are being read go when they have been read.
 * With `dryRun` it only says what that would be.
 */
export async function reclaim(
  options: ReclaimOptions,
  { dryRun, signal = NEVER }: { readonly dryRun: boolean; readonly signal?: AbortSignal },
): Promise<Reclaimed> {
  return dryRun ? await foreseeAll(options) : await new Reclaiming(options, signal).run();
}

function boundsOf({ clock, untaggedTtlMs, filesTtlMs }: ReclaimOptions): ExpiryBounds {
  const now = clock();
  return {
    imagesBeforeMs: untaggedTtlMs === null ? null : now - untaggedTtlMs,
    mergedBeforeMs: now - MERGED_TTL_MS,
    filesBeforeMs: filesTtlMs === null ? null : now - filesTtlMs,
  };
}

async function foreseeAll(options: ReclaimOptions): Promise<Reclaimed> {
  const { images, layers, files, blobs } = await foresee(options.db, boundsOf(options), options.layers.held);
  let fileBytes = 0;
  for (const sha256 of blobs) fileBytes += await releaseBlob(options, sha256, true);
  return { images, layers: layers.length, layerBytes: await sizeOf(options, layers), files, fileBytes };
}

/** One pass: what is to go is found in the thread and then forgotten a little at a time. */
class Reclaiming {
  readonly #options: ReclaimOptions;
  readonly #signal: AbortSignal;
  readonly #total = { images: 0, layers: 0, layerBytes: 0, files: 0, fileBytes: 0 };

  constructor(options: ReclaimOptions, signal: AbortSignal) {
    this.#options = options;
    this.#signal = signal;
  }

  async run(): Promise<Reclaimed> {
    const { db, layers } = this.#options;
    const isHeld = (id: LayerId) => layers.passOver(id);
    const { imagesBeforeMs, mergedBeforeMs, filesBeforeMs } = boundsOf(this.#options);
    if (imagesBeforeMs !== null) {
      await this.#all(
        (limit) => expiredImages(db, imagesBeforeMs, limit),
        (tx, ids) => {
          const tops = deleteExpiredImages(tx, ids, imagesBeforeMs);
          return { images: tops.length, layers: deleteUnreferencedLayers(tx, tops, isHeld) };
        },
      );
    }
    await this.#each((tx) => ({
      layers: deleteMergedLayersUnusedSince(tx, mergedBeforeMs, { limit: BATCH_COUNT, isHeld }),
    }));
    await this.#all(
      (limit) => unreferencedLayers(db, limit),
      (tx, ids) => ({ layers: deleteUnreferencedLayers(tx, ids, isHeld) }),
    );
    if (filesBeforeMs !== null) {
      await this.#each((tx) => ({ files: deleteFilesUnusedSince(tx, filesBeforeMs, BATCH_COUNT) }));
    }
    return this.#total;
  }

  /** Forgets what `find` finds until that is no more, or none of it can go now. */
  async #all<Id>(
    find: (limit: number) => Promise<Id[]>,
    forget: (tx: Orm, ids: readonly Id[]) => Forgotten,
  ): Promise<void> {
    for (let full = true; full && !this.#signal.aborted; ) {
      const found = await find(FOUND_COUNT_MAX);
      let count = 0;
      for await (const ids of batches(found, BATCH_COUNT)) {
        if (!this.#signal.aborted) count += await this.#take((tx) => forget(tx, ids));
      }
      full = found.length === FOUND_COUNT_MAX && count > 0;
    }
  }

  /** The same where it is found as soon as it is looked for. */
  async #each(forget: (tx: Orm) => Forgotten): Promise<void> {
    for (let count = 1; count > 0 && !this.#signal.aborted; ) count = await this.#take(forget);
  }

  /** Does it in one transaction, removes what has no row then, and says how much that was. */
  async #take(forget: (tx: Orm) => Forgotten): Promise<number> {
    const { db } = this.#options;
    const { images = 0, layers = [], files = [] } = db.transaction(forget);
    this.#total.images += images;
    this.#total.layers += layers.length;
    this.#total.layerBytes += await removeLayers(this.#options, layers);
    this.#total.files += files.length;
    for (const sha256 of new Set(files.map((file) => file.sha256))) {
      if (!isBlobReferenced(db.orm, sha256)) this.#total.fileBytes += await releaseBlob(this.#options, sha256, false);
    }
    return images + layers.length + files.length;
  }
}

/**
 * Forgets merged layers of which a file is missing, as after the restore of a data directory without them: a chain that
 * is attached through one could not run. Nothing may attach or merge meanwhile.
 */
export async function forgetBrokenMergedLayers({
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
 * Removes the files of layers and contents that no row names: what an end without warning left. Nothing may make layers
 * meanwhile: one that is not recorded yet looks like that.
 */
export async function reclaimOrphans(
  { db, layout, layers }: Pick<ReclaimOptions, "db" | "layout" | "layers">,
  { dryRun, signal }: { readonly dryRun: boolean; readonly signal?: AbortSignal },
): Promise<Reclaimed> {
  const orphans = new Set<LayerId>();
  let layerBytes = 0;
  for await (const ids of layers.batches()) {
    signal?.throwIfAborted();
    const known = existingLayers(db, ids);
    const unknown = ids.filter((id) => !known.has(id) && !orphans.has(id));
    for (const id of unknown) orphans.add(id);
    layerBytes += dryRun ? await sizeOf({ layers }, unknown) : await removeLayers({ layers }, unknown);
  }
  let files = 0;
  let fileBytes = 0;
  for await (const contents of batches(await listBlobs(layout))) {
    signal?.throwIfAborted();
    const known = referencedBlobs(db, contents);
    const unknown = contents.filter((sha256) => !known.has(sha256));
    files += unknown.length;
    for (const sha256 of unknown) fileBytes += await releaseBlob({ db, layout }, sha256, dryRun);
  }
  return { images: 0, layers: orphans.size, layerBytes, files, fileBytes };
}

/**
 * Removes the layers that stood below a deleted image and that nothing else refers to. It is safe beside running
 * instances, captures and readers. It never fails, as the image is deleted whatever becomes of them: what cannot be
 * removed now, on a full disk for one, goes with the next pass.
 */
export async function releaseLayers(
  options: Pick<ReclaimOptions, "db" | "layers" | "log">,
  top: LayerId,
): Promise<void> {
  try {
    await releaseAll(options, [top]);
  } catch (error) {
    options.log.warn("layers of a deleted image were not removed: the next pass does it", { error });
  }
}

/** The same for several. */
async function releaseAll(options: Pick<ReclaimOptions, "db" | "layers">, tops: readonly LayerId[]): Promise<void> {
  const ids = options.db.transaction((tx) => deleteUnreferencedLayers(tx, tops, (id) => options.layers.passOver(id)));
  await removeLayers(options, ids);
}

/** Removes layers whose images are gone as soon as their last reader is done, until disposal, which waits for that. */
export function releaseWhenRead(options: Pick<ReclaimOptions, "db" | "layers" | "log">): AsyncDisposable {
  let work: Promise<void> = Promise.resolve();
  const listening = options.layers.onFreed((ids) => {
    work = work
      .then(() => releaseAll(options, ids))
      .catch((error: unknown) => options.log.warn("layers that were read were not removed", { error }));
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

async function removeLayers(options: Pick<ReclaimOptions, "layers">, ids: readonly LayerId[]): Promise<number> {
  const bytes = await sizeOf(options, ids);
  for (const id of ids) await options.layers.remove(id);
  return bytes;
}

async function releaseBlob(
  { db, layout }: Pick<ReclaimOptions, "db" | "layout">,
  sha256: string,
  dryRun: boolean,
): Promise<number> {
  if (dryRun) return await blobBytes(layout, sha256);
  return await removeBlob(layout, sha256, () => isBlobReferenced(db.orm, sha256));
}
