import { stat } from "node:fs/promises";
import type { LayerId } from "../../domain/ids.ts";
import type { Keepable } from "../../system/scratch.ts";
import type { IndexMemory } from "../index/index-memory.ts";
import { writeLayerIndex } from "../index/layer-index-writer.ts";

/** A disk that is to become a layer, and its index. */
export interface LayerParts {
  readonly diskPath: string;
  readonly indexPath: string;
}

/** Figures of a listed disk. */
export interface ListedDisk {
  readonly entryCount: number;
  readonly diskBytes: number;
}

/** A layer whose files are in place and synced, but which has no row yet. */
export interface StagedLayer extends Keepable, ListedDisk {
  readonly id: LayerId;
  readonly sizeBytes: number;
}

/** Context for writing an index. */
export interface Indexing {
  /** shared by all indexes that are being written */
  readonly indexMemory: IndexMemory;
  readonly signal: AbortSignal;
}

/**
 * Writes the index of a disk to `indexPath` from the stream that the guest sends, and checks it against the disk's size.
 * @throws LayerIndexError when the stream is invalid; the reason of `signal`
 */
export async function indexDisk(
  stream: AsyncIterable<Uint8Array>,
  files: LayerParts,
  { indexMemory: memory, signal }: Indexing,
): Promise<ListedDisk> {
  const diskBytes = (await stat(files.diskPath)).size;
  const { entryCount } = await writeLayerIndex({ stream, path: files.indexPath, diskBytes, memory, signal });
  return { entryCount, diskBytes };
}
