import { chmod, chown, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { LayerId } from "../../domain/ids.ts";
import { parseUuid } from "../../domain/ids.ts";
import { syncPath } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import { type DataLayout, nameBatches } from "../layout.ts";

const DISK_SUFFIX = ".disk";
const INDEX_SUFFIX = ".index";
/** Nobody may change a layer, and a VMM under its own uid may read it. */
const LAYER_MODE = 0o444;

/** The raw disk of a layer. */
export function layerPath(layout: DataLayout, id: LayerId): string {
  return join(layout.layers, `${id}${DISK_SUFFIX}`);
}

export function indexPath(layout: DataLayout, id: LayerId): string {
  return join(layout.layers, `${id}${INDEX_SUFFIX}`);
}

/**
 * Makes a finished disk and its index the layer `id`, so that a power loss leaves all of it or garbage that no
 * row names. Nothing may hold the disk open for writing any more.
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

/** Removes what there is of a layer. Readers that have it open finish undisturbed. */
export async function removeLayer(layout: DataLayout, id: LayerId): Promise<void> {
  await rm(indexPath(layout, id), { force: true });
  await rm(layerPath(layout, id), { force: true });
}

/** Whether both the disk and the index of a layer are there. */
export async function hasLayerFiles(layout: DataLayout, id: LayerId): Promise<boolean> {
  const [disk, index] = await Promise.all(
    [layerPath(layout, id), indexPath(layout, id)].map((path) => Bun.file(path).exists()),
  );
  return disk === true && index === true;
}

/** What the disk and the index of a layer take on the host's disk, in `bytes`. */
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

/** Ids of all layers of which there is a disk or an index. */
export async function listLayers(layout: DataLayout): Promise<Set<LayerId>> {
  const all = await Array.fromAsync(layerBatches(layout));
  return new Set(all.flat());
}

/** The same, some at a time; one can come twice. */
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
