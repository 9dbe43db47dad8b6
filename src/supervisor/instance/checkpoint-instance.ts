import { chmod } from "node:fs/promises";
import { join } from "node:path";
import type { Database } from "../../db/database.ts";
import type { ImageOrigin } from "../../db/images/history.ts";
import { getImage, type ImageRow, imageDefaults } from "../../db/images/images.ts";
import type { NewImage, Publication } from "../../db/publish.ts";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import type { ImageId, LayerId, OperationId, SandboxId } from "../../domain/ids.ts";
import type { ImageDefaults } from "../../domain/image-defaults.ts";
import { Spid } from "../../domain/log-event.ts";
import type { StoredCheckpointResult } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import { renewUuid } from "../../oci/scratch-disk.ts";
import { requireSpace } from "../../storage/free-space.ts";
import type { IndexMemory } from "../../storage/index/index-memory.ts";
import { haveSameRoot } from "../../storage/layers/layer-root.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import type { LayerParts, StagedLayer } from "../../storage/layers/staged-layer.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import type { DiskGuard } from "../disk-guard.ts";
import { listCopyMs } from "../machines/guest-budgets.ts";
import { MachineLostError } from "../machines/machine-errors.ts";
import type { MachineSource } from "../machines/machine-source.ts";
import type { ReservedPlace } from "../machines/reserved-place.ts";
import type { OperationRef } from "../operations/changes.ts";
import { type Prepared, prepared, type WorkContext, type Worker, withinLimit } from "../operations/work.ts";
import { listLayer } from "./list-layer.ts";
import { notRunning } from "./refusals.ts";
import type { RunningInstance } from "./running-instance.ts";
import type { RunningInstances } from "./running-instances.ts";

/** A validated checkpoint of a running instance. */
export interface CheckpointSubmission {
  readonly instanceId: OperationId;
  /** the image on which the instance runs */
  readonly imageId: ImageId;
  readonly tag: string | null;
  readonly timeoutSeconds: number;
  /** the sandbox whose head moves to the image; absent: none */
  readonly sandboxId?: SandboxId | undefined;
}

export interface CheckpointContext {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly machines: Pick<MachineSource, "take">;
  readonly log: Log;
  readonly instances: RunningInstances;
  /** How images of an instance are made. @throws ApiError `unavailable` when its request is gone */
  readonly originOf: (instanceId: OperationId) => ImageOrigin;
  readonly diskGuard: Pick<DiskGuard, "watch">;
  /** disk space that a checkpoint must leave free */
  readonly diskReserveBytes: number;
  readonly indexMemory: IndexMemory;
  /** admits the machine that lists the files of a copy */
  readonly place: ReservedPlace;
  /** shape of that machine */
  readonly shape: MachineShape;
  /** longest time without writes of the instance, in `milliseconds` */
  readonly pauseMsMax: number;
}

/** Makes an image of the files of an instance while its command runs. */
export function checkpointWorker(context: CheckpointContext): Worker<CheckpointSubmission, CheckpointSubmission> {
  return {
    // It must not wait for the budget: that may have room only after the end of the instance itself.
    cost: () => null,
    reserve: ({ instanceId }) => context.instances.claim(instanceId, "checkpoint"),
    prepare: async (operation, submission, work) => {
      using diskUse = context.diskGuard.watch({ name: `checkpoint ${operation.id}` });
      diskUse.add(work.events.path);
      const limit = { name: "checkpoint", seconds: submission.timeoutSeconds, signal: work.signal };
      return await withinLimit(limit, (limited) => {
        const signal = AbortSignal.any([limited, diskUse.full, work.events.failed]);
        return checkpoint({ ...context, ...work, signal, onFile: diskUse.add }, operation, submission);
      });
    },
  };
}

type Tools = CheckpointContext & WorkContext & { readonly onFile: (path: string) => void };

async function checkpoint(tools: Tools, operation: OperationRef, submission: CheckpointSubmission): Promise<Prepared> {
  const { db, layout, layers, laps } = tools;
  await using stack = new AsyncDisposableStack();
  const parent = getImage(db, operation.accountId, submission.imageId);
  if (parent === null) throw new ApiError("not_found", `image ${submission.imageId} is gone`);
  const [parentFiles] = stack.use(layers.hold([parent.layerId])).files;
  if (parentFiles === undefined) throw new Error("an image without a layer");
  const instance = tools.instances.current(submission.instanceId);
  if (instance === null) throw notRunning();
  const request = tools.originOf(submission.instanceId);
  const origin = { ...request, network: tools.instances.hasHadNetwork(submission.instanceId) };
  const directory = stack.use(await scratchDirectory(layout.tmp, "checkpoint-"));
  const files = { diskPath: join(directory.path, "disk"), indexPath: join(directory.path, "index") };
  for (const path of Object.values(files)) tools.onFile(path);
  const progress = (step: string, more = {}) => tools.events.append(Spid.agent, "progress", { step, ...more });
  progress("copying");
  const pauseMs = await copyFrom(instance, tools, files);
  laps.lap("copy");
  progress("indexing", { pause_ms: pauseMs, copied_bytes: await allocatedBytes(files.diskPath) });
  const layer = await layerOf(tools, operation, files, { parentIndex: parentFiles.index, parentLayer: parent.layerId });
  if (layer !== null) stack.use(layer);
  const defaults = imageDefaults(db, parent.id);
  const { image, ...publication } = publicationOf({ submission, parent, origin, layer, pauseMs, defaults });
  return prepared(stack, { ...publication, image }, () => {
    layer?.keep();
    const data = { operation: operation.id, image: image.id, pause_ms: pauseMs };
    tools.instances.eventsOf(submission.instanceId)?.append(Spid.agent, "checkpoint", data);
  });
}

/** Copies the scratch of the instance. Returns the time without writes, in `milliseconds`. */
async function copyFrom(instance: RunningInstance, tools: Tools, { diskPath }: LayerParts): Promise<number> {
  const { layout, diskReserveBytes, pauseMsMax, signal } = tools;
  const scratch = instance.disks?.scratch?.path;
  // The copy is sparse, too: it takes only the allocated size of the scratch.
  if (scratch !== undefined)
    requireSpace(layout.root, diskReserveBytes + (await allocatedBytes(scratch).catch(() => 0)));
  try {
    const { pauseMs } = await instance.copyScratch({ path: diskPath, pauseMsMax, signal });
    return Math.round(pauseMs * 10) / 10;
  } catch (error) {
    signal.throwIfAborted();
    if (!(error instanceof MachineLostError) || error.code === "insufficient_storage") throw error;
    const message = "the instance ended before its files were copied";
    throw new ApiError("conflict", message, error.details, { cause: error });
  }
}

/** Makes a layer of the copied disk. Null when the instance has changed nothing. */
async function layerOf(
  tools: Tools,
  { accountId }: OperationRef,
  files: LayerParts,
  { parentIndex, parentLayer }: { readonly parentIndex: string; readonly parentLayer: LayerId },
): Promise<StagedLayer | null> {
  // Two layers of a chain must not have the same UUID, and the result of the run will keep the UUID of the scratch.
  if (!(await renewUuid(files.diskPath)))
    throw new ApiError("conflict", "the disk of the instance is not an ext4 file system");
  // The listing machine runs as another user.
  await chmod(files.diskPath, 0o444);
  using _place = await tools.place.take(accountId, tools.signal);
  const listed = await listLayer(tools, { ...files, name: "the checkpoint", allowedMs: listCopyMs });
  if (listed.entryCount === 0 && haveSameRoot(files.indexPath, parentIndex)) return null;
  return await tools.layers.publish(files, listed, parentLayer);
}

function publicationOf({
  submission: { tag, sandboxId, instanceId },
  parent,
  origin,
  layer,
  pauseMs,
  defaults,
}: {
  readonly submission: CheckpointSubmission;
  readonly parent: ImageRow;
  readonly origin: ImageOrigin;
  readonly layer: StagedLayer | null;
  readonly pauseMs: number;
  readonly defaults: ImageDefaults;
}): Publication & { readonly image: NewImage } {
  const id = Bun.randomUUIDv7() as ImageId;
  const sizeBytes = layer?.sizeBytes ?? 0;
  const result: StoredCheckpointResult = {
    image: id,
    ...given({ tag }),
    size_bytes: sizeBytes,
    pause_ms: pauseMs,
  };
  // A checkpoint without changes still makes a new image, which can have its own tag.
  const image = { id, parentId: parent.id, layerId: layer?.id ?? parent.layerId, sizeBytes, defaults, origin };
  const sandbox =
    sandboxId === undefined
      ? undefined
      : { id: sandboxId, instance: instanceId, reason: "checkpoint" as const, isPaused: false };
  return { result, image, tag: tag ?? undefined, sandbox, ...(layer === null ? {} : { layer: rowOf(layer, parent) }) };
}

function rowOf({ id, sizeBytes, diskBytes, entryCount }: StagedLayer, { layerId: parentId }: ImageRow) {
  return { id, parentId, format: "ext4" as const, sizeBytes, diskBytes, entryCount };
}
