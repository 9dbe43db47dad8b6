import { stat } from "node:fs/promises";
import { join } from "node:path";
import type { LayerId } from "../../domain/ids.ts";
import type { Laps } from "../../metrics.ts";
import type { IndexMemory } from "../../storage/index/index-memory.ts";
import { writeLayerIndex } from "../../storage/index/layer-index-writer.ts";
import { haveSameRoot } from "../../storage/layers/layer-root.ts";
import { publishLayer, removeLayer } from "../../storage/layers/layers.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { type Made, removedUnlessKept, scratchDirectory } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import type { Agent } from "../../vm/agent/agent.ts";
import type { Machine } from "../../vm/vmm.ts";
import type { DiskUse } from "../disk-guard.ts";
import { endedEarly } from "../machines/machines.ts";
import { NotKeptError } from "./capture-failure.ts";
import { captureMs } from "./guest-budgets.ts";
import { GuestTime, lateText } from "./guest-time.ts";

/** `details.reason` of a run whose files could not be kept in time. */
const CAPTURE_TIMEOUT = "capture_timeout";

/** A layer whose files are in place and synced, but that no row refers to yet. */
export interface StagedLayer extends Made {
  readonly id: LayerId;
  readonly diskBytes: number;
  readonly sizeBytes: number;
  readonly entryCount: number;
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
  files: { readonly diskPath: string; readonly indexPath: string },
  { indexMemory: memory, signal }: Indexing,
): Promise<{ readonly entryCount: number; readonly diskBytes: number }> {
  const diskBytes = (await stat(files.diskPath)).size;
  const { entryCount } = await writeLayerIndex({ stream, path: files.indexPath, diskBytes, memory, signal });
  return { entryCount, diskBytes };
}

/** Moves a disk and its index into the layer store. The disk must have no writer any more. */
export async function stageLayer(
  layout: DataLayout,
  files: { readonly diskPath: string; readonly indexPath: string },
  facts: { readonly entryCount: number; readonly diskBytes: number },
): Promise<StagedLayer> {
  const id = Bun.randomUUIDv7() as LayerId;
  const sizeBytes = await allocatedBytes(files.diskPath);
  await publishLayer(layout, { id, temporaryDisk: files.diskPath, temporaryIndex: files.indexPath });
  return { id, ...facts, sizeBytes, ...removedUnlessKept(() => removeLayer(layout, id)) };
}

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
  { layout, laps, diskUse, ...indexing }: CaptureTools & Indexing,
  { machine, agent }: { readonly machine: Machine; readonly agent: Agent },
  run: FinishedRun,
): Promise<StagedLayer | null> {
  await using directory = await scratchDirectory(layout.tmp, "capture-");
  const time = await captureTime(machine, run);
  await time.wait("unmounting the file system of the run", agent.freeze());
  laps.lap("freeze");
  const files = { diskPath: run.disk, indexPath: join(directory.path, "index") };
  diskUse.add(files.indexPath);
  const facts = await indexDisk(time.stream("listing the new layer", agent.index("scratch")), files, indexing);
  laps.lap("index");
  const failure = await time.wait("asking for the machine's state", machine.failure());
  if (failure !== null) throw endedEarly(failure);
  await machine.kill();
  if (facts.entryCount === 0 && haveSameRoot(files.indexPath, run.parentIndex)) return null;
  return await stageLayer(layout, files, facts);
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
