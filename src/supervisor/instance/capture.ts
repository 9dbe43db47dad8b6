import { join } from "node:path";
import type { Laps } from "../../metrics.ts";
import type { IndexMemory } from "../../storage/index/index-memory.ts";
import { haveSameRoot } from "../../storage/layers/layer-root.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import type { Indexing, StagedLayer } from "../../storage/layers/staged-layer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import type { Machine } from "../../vm/vmm.ts";
import type { DiskUse } from "../disk-guard.ts";
import { NotKeptError } from "./capture-failure.ts";
import { captureMs } from "./guest-budgets.ts";
import { GuestTime, lateText } from "./guest-time.ts";
import { endScratch, type Guest } from "./steps.ts";

/** `details.reason` of a run whose files could not be kept in time. */
const CAPTURE_TIMEOUT = "capture_timeout";

/** A command that has ended, with what it left. */
export interface FinishedRun {
  /** path of the scratch disk */
  readonly disk: string;
  /** index of the layer below */
  readonly parentIndex: string;
  /** how long the command ran, in `milliseconds` */
  readonly ranMs: number;
}

export interface CaptureTools {
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly laps: Laps;
  /** takes the files that the run makes grow */
  readonly diskUse: Pick<DiskUse, "add">;
  /** of all indexes that are being written */
  readonly indexMemory: IndexMemory;
}

/**
 * Turns the scratch of a machine whose command has ended into a layer: freezes and indexes it in the
 * guest, ends the machine, and only then, when nothing can write to the disk any more, publishes it.
 * Null when the run changed nothing, neither below the root nor of the root itself, which it took from the image.
 * @throws NotKeptError when the guest takes longer for it than honest work of that size would
 */
export async function captureScratch(
  { layout, layers, laps, diskUse, ...indexing }: CaptureTools & Indexing,
  guest: Guest,
  run: FinishedRun,
): Promise<StagedLayer | null> {
  await using directory = await scratchDirectory(layout.tmp, "capture-");
  const time = await captureTime(guest.machine, run);
  const files = { diskPath: run.disk, indexPath: join(directory.path, "index") };
  diskUse.add(files.indexPath);
  const names = { mounted: "the file system of the run", listed: "the new layer" };
  const listed = await endScratch(guest, files, { time, names, indexing, onStep: (step) => laps.lap(step) });
  if (listed.entryCount === 0 && haveSameRoot(files.indexPath, run.parentIndex)) return null;
  return await layers.publish(files, listed);
}

/** The time for all that comes after the command. */
async function captureTime(machine: Machine, { disk, ranMs }: FinishedRun): Promise<GuestTime> {
  const writtenBytes = await allocatedBytes(disk);
  const { memoryBytes } = machine.shape;
  return new GuestTime({
    allowedMs: async (listedBytes) =>
      captureMs({ writtenBytes, nowBytes: await allocatedBytes(disk), memoryBytes, listedBytes, ranMs }),
    late: (step, allowedMs) =>
      new NotKeptError(lateText(step, allowedMs), {
        reason: CAPTURE_TIMEOUT,
        step,
        allowed_ms: Math.round(allowedMs),
      }),
  });
}
