import type { Database, Orm } from "../db/database.ts";
import { deleteFilesUnusedSince, type FileRow, isBlobReferenced, referencedBlobs } from "../db/files.ts";
import { existingLayers } from "../db/layers.ts";
import { deleteMergedLayersUnusedSince } from "../db/merged-layers.ts";
import { deleteUnreferencedLayers, deleteUntaggedImages, unreferencedLayers } from "../db/removal.ts";
import type { LayerId } from "../domain/ids.ts";
import type { Log } from "../log.ts";
import { blobBytes, listBlobs, removeBlob } from "../storage/blobs.ts";
import { sharedLayerHolds } from "../storage/layer-holds.ts";
import { layerBatches, layerBytes, removeLayer } from "../storage/layers.ts";
import { batches, type DataLayout } from "../storage/layout.ts";

/** Merged layers that nobody used for so long are made again when somebody does. */
const MERGED_TTL_MS = 7 * 86_400_000;
/** Rows that one transaction removes: it must not hold the event loop. */
const BATCH_COUNT = 500;

export interface SpaceOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly log: Log;
  readonly clock: () => number;
  /** how long a file that no instance uses is kept, in `milliseconds`; null: for ever */
  readonly filesTtlMs: number | null;
  /** how long an image without a tag is kept after its last use, in `milliseconds`; null: for ever */
  readonly untaggedTtlMs: number | null;
}

/** What was given back, or with a dry run would be. `bytes` are those that the file system has allocated. */
export interface Reclaimed {
  readonly images: number;
  readonly layers: number;
  readonly layerBytes: number;
  readonly files: number;
  readonly fileBytes: number;
}

/** What one transaction forgot. */
interface Forgotten {
  readonly images: number;
  readonly layers: readonly LayerId[];
  readonly files: readonly FileRow[];
  /** contents that no file has any more */
  readonly blobs: readonly string[];
}

/**
 * Removes what is past its time and what nothing refers to; layers that are being read go when they have been read.
 * With `dryRun` it does the same up to the rows, takes that back, and removes no file.
 */
export async function reclaim(
  options: SpaceOptions,
  { dryRun, signal }: { readonly dryRun: boolean; readonly signal?: AbortSignal },
): Promise<Reclaimed> {
  const total = { images: 0, layers: 0, layerBytes: 0, files: 0, fileBytes: 0 };
  for (;;) {
    const forgotten = dryRun ? foresee(options) : options.db.transaction((tx) => forget(tx, options, BATCH_COUNT));
    const { layers, blobs } = forgotten;
    total.images += forgotten.images;
    total.files += forgotten.files.length;
    total.layers += layers.length;
    total.layerBytes += dryRun ? await sizeOf(options, layers) : await removeLayers(options, layers);
    for (const sha256 of blobs) total.fileBytes += await releaseBlob(options, sha256, dryRun);
    const isDone = forgotten.images + layers.length + forgotten.files.length === 0;
    if (isDone || dryRun || signal?.aborted === true) return total;
  }
}

/**
 * Removes the files of layers and contents that no row names: what an end without warning left. Nothing may make layers
 * meanwhile: one that is not recorded yet looks like that.
 */
export async function reclaimOrphans(
  { db, layout }: Pick<SpaceOptions, "db" | "layout">,
  { dryRun, signal }: { readonly dryRun: boolean; readonly signal?: AbortSignal },
): Promise<Reclaimed> {
  const orphans = new Set<LayerId>();
  let layerBytes = 0;
  for await (const ids of layerBatches(layout)) {
    signal?.throwIfAborted();
    const known = existingLayers(db, ids);
    const unknown = ids.filter((id) => !known.has(id) && !orphans.has(id));
    for (const id of unknown) orphans.add(id);
    layerBytes += dryRun ? await sizeOf({ layout }, unknown) : await removeLayers({ layout }, unknown);
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
 * instances, captures and readers.
 */
export async function releaseLayers(options: Pick<SpaceOptions, "db" | "layout">, top: LayerId): Promise<void> {
  await releaseAll(options, [top]);
}

/** The same for several. */
async function releaseAll(options: Pick<SpaceOptions, "db" | "layout">, tops: readonly LayerId[]): Promise<void> {
  const ids = options.db.transaction((tx) => deleteUnreferencedLayers(tx, tops, isHeld));
  await removeLayers(options, ids);
}

/** Removes layers whose images are gone as soon as their last reader is done, until disposal, which waits for that. */
export function releaseWhenRead(options: Pick<SpaceOptions, "db" | "layout" | "log">): AsyncDisposable {
  let work: Promise<void> = Promise.resolve();
  const listening = sharedLayerHolds.onFreed((ids) => {
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

const isHeld = (id: LayerId): boolean => sharedLayerHolds.passOver(id);

function forget(tx: Orm, { clock, filesTtlMs, untaggedTtlMs }: SpaceOptions, limit: number): Forgotten {
  const tops = untaggedTtlMs === null ? [] : deleteUntaggedImages(tx, clock() - untaggedTtlMs, limit);
  const unused = deleteMergedLayersUnusedSince(tx, clock() - MERGED_TTL_MS, { limit, isHeld });
  const layers = deleteUnreferencedLayers(tx, tops.length > 0 ? tops : unreferencedLayers(tx, limit), isHeld);
  const files = filesTtlMs === null ? [] : deleteFilesUnusedSince(tx, clock() - filesTtlMs, limit);
  const contents = [...new Set(files.map(({ sha256 }) => sha256))];
  return {
    images: tops.length,
    layers: [...unused, ...layers],
    files,
    blobs: contents.filter((sha256) => !isBlobReferenced(tx, sha256)),
  };
}

/** Takes the transaction back that it is thrown in, and carries out of it what it found. */
class Foreseen {
  readonly forgotten: Forgotten;

  constructor(forgotten: Forgotten) {
    this.forgotten = forgotten;
  }
}

/** All that a real pass would forget, in one transaction that is then taken back. */
function foresee(options: SpaceOptions): Forgotten {
  try {
    return options.db.transaction((tx) => {
      const expired = forget(tx, options, Number.MAX_SAFE_INTEGER);
      const orphans = deleteUnreferencedLayers(tx, unreferencedLayers(tx, Number.MAX_SAFE_INTEGER), isHeld);
      throw new Foreseen({ ...expired, layers: [...expired.layers, ...orphans] });
    });
  } catch (error) {
    if (error instanceof Foreseen) return error.forgotten;
    throw error;
  }
}

async function sizeOf({ layout }: Pick<SpaceOptions, "layout">, ids: readonly LayerId[]): Promise<number> {
  let bytes = 0;
  for (const id of ids) bytes += await layerBytes(layout, id);
  return bytes;
}

async function removeLayers(options: Pick<SpaceOptions, "layout">, ids: readonly LayerId[]): Promise<number> {
  const bytes = await sizeOf(options, ids);
  for (const id of ids) await removeLayer(options.layout, id);
  return bytes;
}

async function releaseBlob(
  { db, layout }: Pick<SpaceOptions, "db" | "layout">,
  sha256: string,
  dryRun: boolean,
): Promise<number> {
  if (dryRun) return await blobBytes(layout, sha256);
  return await removeBlob(layout, sha256, () => isBlobReferenced(db.orm, sha256));
}
