import { chmod, chown, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { LayerId } from "../../domain/ids.ts";
import { parseUuid } from "../../domain/ids.ts";
import { syncPath } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import { type DataLayout, nameBatches } from "../layout.ts";

const DISK_SUFFIX = ".disk";
const INDEX_SUFFIX = ".index";
/** Layers never change, and VMMs read them under their own uids. */
const LAYER_MODE = 0o444;

/** Path of a layer's raw disk. */
export function layerPath(layout: DataLayout, id: LayerId): string {
  return join(layout.layers, `${id}${DISK_SUFFIX}`);
}

export function indexPath(layout: DataLayout, id: LayerId): string {
  return join(layout.layers, `${id}${INDEX_SUFFIX}`);
}

/**
 * Moves a finished disk and its index to the layers under `id`. A power failure leaves both, or garbage that no row refers
 * to. Nothing may have the disk open for writing any more.
 */
export async function publishLayer(
  layout: DataLayout,
  layer: { readonly id: LayerId; readonly temporaryDisk: string; readonly temporaryIndex: string },
): Promise<void> {
  const { id, temporaryDisk, temporaryIndex } = layer;
  for (const path of [temporaryDisk, temporaryIndex]) {
    await chown(path, process.getuid?.() ?? 0, process.getgid?.() ?? 0);
    await chmod(path, LAYER_MODE);
    await syncPath(path);
  }
  await rename(temporaryDisk, layerPath(layout, id));
  await rename(temporaryIndex, indexPath(layout, id));
  await syncPath(layout.layers);
}

/** Removes the files of a layer, if they exist. Readers that have them open can continue. */
export async function removeLayer(layout: DataLayout, id: LayerId): Promise<void> {
  await rm(indexPath(layout, id), { force: true });
  await rm(layerPath(layout, id), { force: true });
}

/** Whether both files of a layer exist. */
export async function hasLayerFiles(layout: DataLayout, id: LayerId): Promise<boolean> {
  const [disk, index] = await Promise.all(
    [layerPath(layout, id), indexPath(layout, id)].map((path) => Bun.file(path).exists()),
  );
  return disk === true && index === true;
}

/** Space of the files of a layer on the host's disk, in `bytes`. */
export async function layerBytes(layout: DataLayout, id: LayerId): Promise<number> {
  let bytes = 0;
  for (const path of [layerPath(layout, id), indexPath(layout, id)]) {
    bytes += await allocatedBytes(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return 0;
      throw error;
    });
  }
  return bytes;
}

/** Ids of all layers that have a disk or an index, in batches. An id may occur twice. */
export async function* layerBatches(layout: DataLayout): AsyncGenerator<LayerId[]> {
  for await (const names of nameBatches(layout.layers)) {
    const ids = new Set<LayerId>();
    for (const name of names) {
      for (const suffix of [DISK_SUFFIX, INDEX_SUFFIX]) {
        const id = name.endsWith(suffix) ? parseUuid<LayerId>(name.slice(0, -suffix.length)) : null;
        if (id !== null) ids.add(id);
      }
    }
    yield [...ids];
  }
}
