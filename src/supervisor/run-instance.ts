import type { Database } from "../db/database.ts";
import { getImage, type ImageRow } from "../db/images.ts";
import { publishRun } from "../db/publish.ts";
import { ApiError } from "../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../domain/ids.ts";
import type { StoredInstanceResult, StoredOutput } from "../domain/operation.ts";
import type { OutputCapture } from "../domain/output.ts";
import { indexPath, layerPath } from "../storage/layers.ts";
import { writeOutputs } from "../storage/outputs.ts";
import { ownTurn } from "../system/waiting.ts";
import { templateShape } from "../vm/templates.ts";
import type { Compactor } from "./compact.ts";
import { execute, type InstanceOutcome, type InstanceTools } from "./execute.ts";
import type { Work } from "./operations.ts";
import type { InstanceSubmission } from "./ports.ts";
import { costOf } from "./scheduler.ts";

export interface InstanceContext extends Omit<InstanceTools, "onMachine" | "laps"> {
  readonly db: Database;
  readonly compactor: Compactor;
  readonly clock: () => number;
}

/** The work of one instance: run, capture, and publish its image and result in one transaction. */
export function instanceWork(
  context: InstanceContext,
  operation: { readonly id: OperationId; readonly accountId: AccountId },
  submission: InstanceSubmission,
): Work {
  return {
    cost: costOf(templateShape(submission.resources)),
    run: async ({ signal, laps, onMachine, onPublished }) => {
      const { db, layout, clock } = context;
      const image = getImage(db, operation.accountId, submission.imageId);
      if (image === null) throw new ApiError("not_found", `image ${submission.imageId} is gone`);
      using attachment = await context.compactor.attach(operation.accountId, image.layerId, signal);
      const layerDisks = attachment.layers.map((id) => layerPath(layout, id));
      const parentIndex = indexPath(layout, image.layerId);
      const job = { operationId: operation.id, submission, layerDisks, parentIndex };
      const outcome = await execute({ ...context, laps, onMachine }, job, signal);
      await using stack = new AsyncDisposableStack();
      if (outcome.layer !== null) stack.use(outcome.layer);
      await writeOutputs(layout, operation.id, { stdout: outcome.stdout.bytes(), stderr: outcome.stderr.bytes() });
      const captured = capturedImage(outcome, image.id);
      await ownTurn();
      const published = publishRun(db, {
        operationId: operation.id,
        result: storedResult(outcome, captured),
        now: clock(),
        ...newRows(outcome, image, captured, submission.argv),
      });
      if (!published) return false;
      outcome.layer?.keep();
      onPublished();
      return true;
    },
  };
}

/** The image of the result: a new one, the input where nothing changed, none where nothing was kept. */
function capturedImage(outcome: InstanceOutcome, input: ImageId): ImageId | null {
  if (!outcome.captured) return null;
  return outcome.layer === null ? input : (Bun.randomUUIDv7() as ImageId);
}

function newRows(outcome: InstanceOutcome, input: ImageRow, captured: ImageId | null, command: readonly string[]) {
  const { layer, exitCode, timedOut } = outcome;
  if (layer === null || captured === null) return {};
  const { id, sizeBytes, diskBytes, entryCount } = layer;
  const making = { command, exitCode, timedOut };
  return {
    layer: { id, parentId: input.layerId, format: "ext4" as const, sizeBytes, diskBytes, entryCount },
    image: { id: captured, parentId: input.id, layerId: id, sizeBytes, making },
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

/** A limit of 0 leaves nothing of what was written: then there is no file either. */
function storedOutput(output: OutputCapture): StoredOutput {
  return { truncated: output.truncated, ...(output.isEmpty ? { empty: true } : {}) };
}
