import { askForGc } from "../../api/operator/control.ts";
import type { Config } from "../../config/config.ts";
import { openDatabase } from "../../db/database.ts";
import { layerIds } from "../../db/images/layers.ts";
import type { Reclaimed } from "../../domain/operator/reclaimed.ts";
import type { Log } from "../../log.ts";
import { LayerStore } from "../../storage/layers/layer-store.ts";
import { dataLayout, hasData, lockData } from "../../storage/layout.ts";
import { reclaim, reclaimOrphans } from "../../supervisor/reclaim.ts";

/** The data directory does not exist, or a daemon that does not answer uses it. */
export class GcError extends Error {
  override readonly name = "GcError";
}

/**
 * Reclaims space in a data directory. A daemon that runs there does it, because it knows which layers are being read;
 * without a daemon, this process does it.
 * @throws GcError; DataAccessError
 */
export async function collectGarbage(config: Config, log: Log, dryRun: boolean): Promise<Reclaimed> {
  const layout = dataLayout(config.dataDir);
  if (!hasData(layout)) throw new GcError(`there is no appliance's data in ${layout.root}`);
  const answered = await askForGc(layout.control, dryRun);
  if (answered !== null) return answered;
  using lock = await lockData(layout);
  if (lock === null) throw new GcError("an appliance uses the data directory and does not answer: it may be starting");
  using db = openDatabase(layout.database);
  const { files, images } = config;
  using layers = new LayerStore({ layout, chainOf: (topId) => layerIds(db, topId) });
  const policy = { filesTtlMs: files.ttlMs, untaggedTtlMs: images.untaggedTtlMs, memoryTtlMs: images.memoryTtlMs };
  const options = { db, layout, layers, log, clock: Date.now, ...policy };
  const expired = await reclaim(options, { dryRun });
  const orphans = await reclaimOrphans(options, { dryRun });
  return {
    ...expired,
    layers: expired.layers + orphans.layers,
    layerBytes: expired.layerBytes + orphans.layerBytes,
    files: expired.files + orphans.files,
    fileBytes: expired.fileBytes + orphans.fileBytes,
  };
}
