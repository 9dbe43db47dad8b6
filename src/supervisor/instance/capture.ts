import { join } from "node:path";
import type { LayerId } from "../../domain/ids.ts";
import { renewUuid } from "../../oci/scratch-disk.ts";
import type { IndexMemory } from "../../storage/index/index-memory.ts";
import { haveSameRoot } from "../../storage/layers/layer-root.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import type { Indexing, StagedLayer } from "../../storage/layers/staged-layer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import type { Machine } from "../../vm/vmm.ts";
import type { DiskUse } from "../disk-guard.ts";
import { captureMs } from "../machines/guest-budgets.ts";
import { GuestTime, lateText } from "../machines/guest-time.ts";
import { type Guest, sealScratch } from "../machines/steps.ts";
import type { Laps } from "../operations/laps.ts";
import { CaptureError } from "./capture-failure.ts";

/** `details.reason` of a run whose files could not be captured in time. */
const CAPTURE_TIMEOUT = "capture_timeout";

/** An instance whose command has ended. */
export interface FinishedInstance {
  /** host path of the scratch disk */
  readonly disk: string;
  /** host path of the index of the image's top layer */
  readonly parentIndex: string;
  /** that layer; absent: it is not compared with the new one */
  readonly parentLayer?: LayerId | undefined;
  /** how long the command ran, in `milliseconds` */
  readonly ranMs: number;
  /** true: there is a copy of the scratch, which keeps the UUID of its file system */
  readonly isCopied?: boolean;
}

export interface CaptureTools {
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly laps: Laps;
  /** watches the size of the files that the run writes */
  readonly diskUse: Pick<DiskUse, "add">;
  /** the memory budget that all index writers share */
  readonly indexMemory: IndexMemory;
}

/**
 * Turns the scratch disk of a finished run into a layer: freezes and indexes it in the guest, kills the machine, and only
 * then, when nothing can write to the disk any more, publishes it.
 * Null when the run changed nothing: no entry was added, and the root directory is that of the image.
 * @throws CaptureError when the guest takes longer than honest work of that size would
 */
export async function captureScratch(
  { layout, layers, laps, diskUse, ...indexing }: CaptureTools & Indexing,
  guest: Guest,
  run: FinishedInstance,
): Promise<StagedLayer | null> {
  await using directory = await scratchDirectory(layout.tmp, "capture-");
  const time = await captureTime(guest.machine, run);
  const files = { diskPath: run.disk, indexPath: join(directory.path, "index") };
  diskUse.add(files.indexPath);
  const names = { mounted: "the file system of the run", listed: "the new layer" };
  const listed = await sealScratch(guest, files, { time, names, indexing, onStep: (step) => laps.lap(step) });
  if (run.isCopied === true) await renewUuid(run.disk);
  if (listed.entryCount === 0 && haveSameRoot(files.indexPath, run.parentIndex)) return null;
  return await layers.publish(files, listed, run.parentLayer);
}

/** The time budget of all steps after the command. */
async function captureTime(machine: Machine, { disk, ranMs }: FinishedInstance): Promise<GuestTime> {
  const writtenBytes = await allocatedBytes(disk);
  const { memoryBytes } = machine.shape;
  return new GuestTime({
    allowedMs: async (listedBytes) =>
      captureMs({ writtenBytes, nowBytes: await allocatedBytes(disk), memoryBytes, listedBytes, ranMs }),
    late: (step, allowedMs) =>
      new CaptureError(lateText(step, allowedMs), {
        reason: CAPTURE_TIMEOUT,
        step,
        allowed_ms: Math.round(allowedMs),
      }),
  });
}
