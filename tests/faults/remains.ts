import { openDatabase } from "../../src/db/database.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { cgroupNamespace } from "../../src/supervisor/machines/cgroups.ts";
import { type Appliance, processesWith } from "../support/appliance/appliance.ts";
import { controlGroups } from "../support/appliance/control-groups.ts";
import { allLayerIds } from "../support/database.ts";
import { listLayers } from "../support/images/layer-files.ts";

const ERROR_LINES_MAX = 20;

/** Remains on the host of a daemon that was stopped with SIGTERM. */
export async function leftBy(appliance: Appliance): Promise<string[]> {
  const layout = dataLayout(appliance.dataDir);
  using db = openDatabase(layout.database);
  const layerIds = new Set(allLayerIds(db));
  const namespace = `/${cgroupNamespace(appliance.dataDir)}/`;
  const mounts = await Bun.file("/proc/self/mountinfo").text();
  return [
    ...(await processesWith(appliance.dataDir)).map(({ argv }) => argv),
    ...(await controlGroups((path) => path.includes(namespace))),
    ...mounts.split("\n").filter((line) => line.includes(appliance.dataDir)),
    ...(await appliance.leftovers()),
    ...[...(await listLayers(layout))].filter((id) => !layerIds.has(id)).map((id) => `layer ${id}`),
  ].filter((line) => line !== "");
}

/** The errors that the daemon logged, to find the cause of a failure. */
export function errorsIn(log: string): string {
  const lines = log.split("\n").filter((line) => line.includes('"level":"error"'));
  return `${lines.slice(0, ERROR_LINES_MAX).join("\n")}\n`;
}
