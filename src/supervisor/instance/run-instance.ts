import type { Database } from "../../db/database.ts";
import { getImage, type ImageRow } from "../../db/images.ts";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId } from "../../domain/ids.ts";
import type { StoredInstanceResult, StoredOutput } from "../../domain/operation.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";
import type { DiskGuard } from "../disk-guard.ts";
import type { Compactor } from "../merging/compact.ts";
import type { InstanceNetworks } from "../network/instance-networks.ts";
import type { InstanceRequest } from "../operations/ports.ts";
import { costOf } from "../operations/scheduler.ts";
import { prepared, type Worker } from "../operations/work.ts";
import { execute, type InstanceOutcome, type InstanceTools } from "./execute.ts";

export interface InstanceContext extends Omit<InstanceTools, "laps" | "diskUse" | "events" | "network" | "uninvited"> {
  readonly db: Database;
  readonly diskGuard: Pick<DiskGuard, "watch">;
  readonly compactor: Compactor;
  readonly networks: InstanceNetworks;
}

/** Does the work of instances: runs the command, and captures its changes as the image to publish. */
export function instanceWorker(context: InstanceContext): Worker<InstanceRequest> {
  return {
    cost: (resources) => {
      if (resources === null) throw new Error("an instance without resources");
      return costOf(resources);
    },
    prepare: async (operation, submission, { signal, laps, events, auditNetwork }) => {
      const { db, layers, networks } = context;
      const image = getImage(db, operation.accountId, submission.imageId);
      if (image === null) throw new ApiError("not_found", `image ${submission.imageId} is gone`);
      await using stack = new AsyncDisposableStack();
      const attached = stack.use(await context.compactor.attach(operation.accountId, image.layerId, signal));
      const [parent] = stack.use(layers.hold([image.layerId])).files;
      if (parent === undefined) throw new Error("an image without a layer");
      const job = { operationId: operation.id, submission, image: attached, parentIndex: parent.index };
      // The watch ends when the machine is gone, and its files were either removed or captured.
      using diskUse = context.diskGuard.watch({ name: `run ${operation.id}` });
      diskUse.add(events.path);
      const bounded = AbortSignal.any([signal, diskUse.full, events.failed]);
      await using network = submission.network === null ? null : networks.open(operation, submission.network, events);
      const uninvited = (count: number) => networks.uninvited(operation.id, count);
      const tools = { ...context, laps, diskUse, events, network, uninvited };
      if (network !== null) auditNetwork(() => network.audit());
      const outcome = await execute(tools, job, bounded);
      if (outcome.layer !== null) stack.use(outcome.layer);
      const captured = capturedImage(outcome, image.id);
      const result = storedResult(outcome, captured);
      return prepared(stack, { result, ...newRows(outcome, image, captured, submission) }, () => {
        outcome.layer?.keep();
      });
    },
  };
}

/** The image of the result: a new one, the input image when nothing changed, null when nothing was captured. */
function capturedImage(outcome: InstanceOutcome, input: ImageId): ImageId | null {
  if (!outcome.captured) return null;
  return outcome.layer === null ? input : (Bun.randomUUIDv7() as ImageId);
}

function newRows(outcome: InstanceOutcome, input: ImageRow, captured: ImageId | null, submission: InstanceRequest) {
  const { layer, exitCode, timedOut } = outcome;
  if (layer === null || captured === null) return {};
  const { id, sizeBytes, diskBytes, entryCount } = layer;
  const origin = { command: submission.argv, exitCode, timedOut, network: submission.network !== null };
  return {
    layer: { id, parentId: input.layerId, format: "ext4" as const, sizeBytes, diskBytes, entryCount },
    image: { id: captured, parentId: input.id, layerId: id, sizeBytes, origin },
  };
}

function storedResult(outcome: InstanceOutcome, image: ImageId | null): StoredInstanceResult {
  return {
    exit_code: outcome.exitCode,
    stdout: storedOutput(outcome.stdout),
    stderr: storedOutput(outcome.stderr),
    cpu_time_ms: outcome.cpuTimeMs,
    memory_bytes: outcome.memoryBytes,
    timed_out: outcome.timedOut,
    ...(outcome.oomKilled ? { oom_killed: true } : {}),
    ...(image === null ? {} : { image }),
    isolation: outcome.isolation,
  };
}

function storedOutput({ kept, dropped }: StreamBytes): StoredOutput {
  return { truncated: dropped > 0, bytes: kept };
}
