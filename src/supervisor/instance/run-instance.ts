import type { Database } from "../../db/database.ts";
import { getImage, type ImageRow, imageDefaults } from "../../db/images/images.ts";
import type { NewImage, Publication } from "../../db/publish.ts";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import type { ImageId } from "../../domain/ids.ts";
import { haveSameDefaults, type ImageDefaults, resultDefaults } from "../../domain/image-defaults.ts";
import type { NetworkRequest } from "../../domain/network.ts";
import type { StoredInstanceResult, StoredOutput } from "../../domain/operation.ts";
import type { InstanceRequest, InstanceSubmission } from "../../domain/spawn.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";
import type { StagedLayer } from "../../storage/layers/staged-layer.ts";
import type { DiskGuard } from "../disk-guard.ts";
import type { Compactor } from "../merging/compact.ts";
import type { InstanceNetworks } from "../network/instance-networks.ts";
import type { OperationRef } from "../operations/changes.ts";
import { costOf } from "../operations/scheduler.ts";
import { prepared, type WorkContext, type Worker } from "../operations/work.ts";
import { adopt } from "./adoption/adopt-instance.ts";
import { InstanceKeeper, type KeeperParts } from "./adoption/instance-keeper.ts";
import { execute, type InstanceOutcome, type ResumedInstance, resume } from "./execute.ts";
import { type ForkedStarts, runForked } from "./forks/forked-starts.ts";
import type { IdleJob, InstanceTools } from "./start-instance.ts";

export interface InstanceContext
  extends Omit<InstanceTools, "laps" | "diskUse" | "events" | "network" | "uninvited" | "keeper"> {
  readonly db: Database;
  readonly diskGuard: Pick<DiskGuard, "watch">;
  readonly compactor: Compactor;
  readonly networks: InstanceNetworks;
  /** machines of operations that begin as copies of others */
  readonly starts: Pick<ForkedStarts, "take">;
  readonly keeping: KeeperParts;
}

/** Does the work of instances: runs the command, and captures its changes as the image to publish. */
export function instanceWorker(context: InstanceContext): Worker<InstanceSubmission, InstanceRequest> {
  return {
    cost: (resources) => {
      if (resources === null) throw new Error("an instance without resources");
      return costOf(resources);
    },
    prepare: async (operation, submission, work) => {
      await using stack = new AsyncDisposableStack();
      const run = await runOnImage(context, operation, { submission, work, stack });
      const { outcome, image, defaults, hadNetwork } = run;
      const newDefaults = resultDefaults(submission, defaults);
      // A tag gets its own image, as a checkpoint does: the parent must not lose its tag.
      const isOwn = outcome.layer !== null || submission.tag !== null || !haveSameDefaults(newDefaults, defaults);
      const newId = outcome.captured && isOwn ? (Bun.randomUUIDv7() as ImageId) : null;
      const tag = given({ tag: submission.tag });
      const result = storedResult(outcome, outcome.captured ? { image: newId ?? image.id, ...tag } : {});
      const rows =
        newId === null
          ? {}
          : newRows(outcome, { id: newId, parent: image, submission, hadNetwork, defaults: newDefaults });
      return prepared(stack, { result, ...rows, ...tag }, () => {
        outcome.layer?.keep();
      });
    },
  };
}

/** An instance that has ended. */
interface EndedInstance {
  readonly outcome: InstanceOutcome;
  /** the image that it started from, and its defaults */
  readonly image: ImageRow;
  readonly defaults: ImageDefaults;
  readonly hadNetwork: boolean;
}

interface RunOptions {
  readonly submission: InstanceRequest;
  readonly work: WorkContext;
  /** gets the layers of the image, and the new one */
  readonly stack: AsyncDisposableStack;
  readonly idle?: IdleJob;
  /** The network, requested when changes of it begin to reach the instance. Absent: that of the submission. */
  readonly policy?: () => NetworkRequest | null;
  /** Makes the machine of an instance that continues. Absent: its command begins. */
  readonly resumed?: (signal: AbortSignal) => Promise<ResumedInstance>;
}

/** Runs an instance on its image, or continues one that a former process has left. @throws as `execute` and `adopt` do */
export async function runOnImage(
  context: InstanceContext,
  operation: OperationRef,
  { submission, work, stack, idle, policy = () => submission.network, resumed }: RunOptions,
): Promise<EndedInstance> {
  const { db, layers, networks, starts } = context;
  const { signal, laps, events, auditNetwork, left } = work;
  const start = starts.take(operation.id);
  if (start !== null) stack.use(start);
  const image = getImage(db, operation.accountId, submission.imageId);
  if (image === null) throw new ApiError("not_found", `image ${submission.imageId} is gone`);
  const kept = left === undefined ? null : stack.use(layers.hold(left.survivor.record.layers));
  const attached =
    start?.image ?? kept ?? stack.use(await context.compactor.attach(operation.accountId, image.layerId, signal));
  const [parent] = stack.use(layers.hold([image.layerId])).files;
  if (parent === undefined) throw new Error("an image without a layer");
  const defaults = imageDefaults(db, image.id);
  const top = { parentIndex: parent.index, parentLayer: image.layerId };
  const job = { operationId: operation.id, submission, image: attached, ...top, defaults, idle };
  // The watch ends when the machine is gone, and its files were either removed or captured.
  using diskUse = context.diskGuard.watch({ name: `run ${operation.id}` });
  const processEvents = idle?.processEvents ?? events;
  diskUse.add(processEvents.path);
  const bounded = AbortSignal.any([signal, diskUse.full, events.failed, processEvents.failed]);
  // `execute` registers the instance before it waits for anything, so no change is missed.
  using keeper = new InstanceKeeper(context.keeping, operation.accountId);
  const from = left?.survivor.record.network;
  await using network = networks.open(operation, policy(), processEvents, { from, keeper });
  const uninvited = (count: number) => networks.uninvited(operation.id, count);
  const tools = { ...context, laps, diskUse, events, network, uninvited, keeper };
  auditNetwork(() => network.audit());
  const begin = async (): Promise<InstanceOutcome> => {
    if (left !== undefined) return await adopt(tools, { ...job, left, others: idle?.summary }, bounded);
    if (start !== null) return await runForked(tools, job, start, bounded);
    if (resumed !== undefined) return await resume(tools, job, await resumed(bounded), bounded);
    return await execute(tools, job, bounded);
  };
  const outcome = await begin();
  if (outcome.layer !== null) stack.use(outcome.layer);
  return { outcome, image, defaults, hadNetwork: network.wasOn };
}

/** The new image, and its layer. An instance that changed no file makes an image with the layer of its parent. */
function newRows(
  { layer, exitCode, timedOut }: InstanceOutcome,
  options: {
    readonly id: ImageId;
    readonly parent: ImageRow;
    readonly submission: InstanceRequest;
    readonly hadNetwork: boolean;
    readonly defaults: ImageDefaults;
  },
): Pick<Publication, "layer" | "image"> {
  const { submission, hadNetwork: network, ...image } = options;
  const origin = { command: submission.argv, exitCode, timedOut, network };
  return rowsOf(layer, { ...image, origin });
}

/** A new image with the layer, or with that of its parent when nothing has changed. */
export function rowsOf(
  layer: StagedLayer | null,
  { parent, ...fields }: Pick<NewImage, "id" | "defaults" | "origin"> & { readonly parent: ImageRow },
): Pick<Publication, "layer" | "image"> {
  const image = { ...fields, parentId: parent.id };
  if (layer === null) return { image: { ...image, layerId: parent.layerId, sizeBytes: 0 } };
  const { id: layerId, sizeBytes, diskBytes, entryCount } = layer;
  return {
    layer: { id: layerId, parentId: parent.layerId, format: "ext4", sizeBytes, diskBytes, entryCount },
    image: { ...image, layerId, sizeBytes },
  };
}

function storedResult(
  outcome: InstanceOutcome,
  kept: Pick<StoredInstanceResult, "image" | "tag">,
): StoredInstanceResult {
  return {
    exit_code: outcome.exitCode,
    stdout: storedOutput(outcome.stdout),
    stderr: storedOutput(outcome.stderr),
    cpu_time_ms: outcome.cpuTimeMs,
    memory_bytes: outcome.memoryBytes,
    timed_out: outcome.timedOut,
    ...(outcome.oomKilled ? { oom_killed: true } : {}),
    ...kept,
    isolation: outcome.isolation,
  };
}

function storedOutput({ kept, dropped }: StreamBytes): StoredOutput {
  return { truncated: dropped > 0, bytes: kept };
}
