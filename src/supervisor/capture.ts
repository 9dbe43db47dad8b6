import { open } from "node:fs/promises";
import { join } from "node:path";
import type { LayerId } from "../domain/ids.ts";
import type { Laps } from "../metrics.ts";
import { writeLayerIndex } from "../storage/layer-index-writer.ts";
import { haveSameRoot } from "../storage/layer-root.ts";
import { publishLayer, removeLayer } from "../storage/layers.ts";
import type { DataLayout } from "../storage/layout.ts";
import { scratchDirectory } from "../system/scratch.ts";
import { allocatedBytes } from "../system/sparse.ts";
import type { Agent } from "../vm/agent.ts";
import type { Machine } from "../vm/vmm.ts";
import { withDeadline } from "./deadline.ts";
import { endedEarly } from "./machines.ts";

/** Unmounting writes out what the command left in the guest's page cache: up to all of its memory. */
export const FREEZE_MS_MAX = 300_000;
/** A million entries take minutes under emulation. */
const INDEX_MS_MAX = 600_000;

/** A layer whose files are in place and synced, but that no row refers to yet. */
export interface StagedLayer extends AsyncDisposable {
  readonly id: LayerId;
  readonly diskBytes: number;
  readonly sizeBytes: number;
  readonly entryCount: number;
  /** Keeps the files when the scope ends: call it once a row refers to them. */
  keep(): void;
}

/** Streams the index of a disk of `machine` to `indexPath` and checks it against the disk's size. */
export async function indexDisk(
  agent: Agent,
  disk: number | "scratch",
  files: { readonly diskPath: string; readonly indexPath: string },
): Promise<{ readonly entryCount: number; readonly diskBytes: number }> {
  await using handle = await open(files.diskPath);
  const diskBytes = (await handle.stat()).size;
  const written = writeLayerIndex({ stream: agent.index(disk), path: files.indexPath, diskBytes });
  const { entryCount } = await withDeadline(written, INDEX_MS_MAX, "listing the new layer");
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
  let kept = false;
  return {
    id,
    ...facts,
    sizeBytes,
    keep: () => {
      kept = true;
    },
    [Symbol.asyncDispose]: async () => {
      if (!kept) await removeLayer(layout, id);
    },
  };
}

/**
 * Turns the scratch of a machine whose command has ended into a layer: freezes and indexes it in the
 * guest, ends the machine, and only then, when nothing can write to the disk any more, publishes it.
 * Null when the run changed nothing, neither below the root nor of the root itself, which it took from the image.
 */
export async function captureScratch(
  { layout, laps }: { readonly layout: DataLayout; readonly laps: Laps },
  { machine, agent }: { readonly machine: Machine; readonly agent: Agent },
  paths: { readonly disk: string; readonly parentIndex: string },
): Promise<StagedLayer | null> {
  await using directory = await scratchDirectory(layout.tmp, "capture-");
  await withDeadline(agent.freeze(), FREEZE_MS_MAX, "unmounting the file system of the run");
  laps.lap("freeze");
  const files = { diskPath: paths.disk, indexPath: join(directory.path, "index") };
  const facts = await indexDisk(agent, "scratch", files);
  laps.lap("index");
  const failure = await machine.failure();
  if (failure !== null) throw endedEarly(failure);
  await machine.kill();
  if (facts.entryCount === 0 && haveSameRoot(files.indexPath, paths.parentIndex)) return null;
  return await stageLayer(layout, files, facts);
}
