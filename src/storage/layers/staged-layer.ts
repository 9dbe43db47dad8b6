import { stat } from "node:fs/promises";
import type { LayerId } from "../../domain/ids.ts";
import type { Made } from "../../system/scratch.ts";
import type { IndexMemory } from "../index/index-memory.ts";
import { writeLayerIndex } from "../index/layer-index-writer.ts";

/** A disk that is to be a layer, and its index. */
export interface LayerParts {
  readonly diskPath: string;
  readonly indexPath: string;
}

/** What the listing of a disk came to. */
export interface ListedDisk {
  readonly entryCount: number;
  readonly diskBytes: number;
}

/** A layer whose files are in place and synced, but that no row refers to yet. */
export interface StagedLayer extends Made, ListedDisk {
  readonly id: LayerId;
  readonly sizeBytes: number;
}

/** What an index is written with. */
export interface Indexing {
  /** of all indexes that are being written */
  readonly indexMemory: IndexMemory;
  readonly signal: AbortSignal;
}

/**
 * Writes the index of a disk, which the guest streams, to `indexPath` and checks it against the disk's size.
 * @throws the reason of `signal`
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
