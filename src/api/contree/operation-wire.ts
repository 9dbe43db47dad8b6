import { type ImageId, isoTime } from "../../domain/ids.ts";
import { isTerminal, type StoredImportResult, type StoredInstanceResult } from "../../domain/operation.ts";
import type { Operation } from "../../service/operations.ts";
import type { OperationSummary } from "./schema/operations.ts";

const SECOND_MS = 1000;
const KIB_BYTES = 1024;

/** The parts of all kinds of results. */
type AnyResult = Partial<StoredInstanceResult & StoredImportResult>;

/** The image of an operation's result; null when there is none. */
export function resultImage({ status, result }: Operation): ImageId | null {
  return status === "SUCCESS" ? (((result as AnyResult | null)?.image as ImageId | undefined) ?? null) : null;
}

/** The time from the start of an operation to its end, or until now, in `milliseconds`. */
export function durationMs({ startedAt, finishedAt }: Operation, nowMs: number): number {
  return startedAt === null ? 0 : Math.max(0, (finishedAt ?? nowMs) - startedAt);
}

export interface SummaryParts {
  /** sizes of images, in `bytes` */
  readonly imageSizes: ReadonlyMap<ImageId, number>;
  /** `milliseconds` since the epoch */
  readonly nowMs: number;
}

/** The fields of an operation that a listing has, too. */
export function summaryOf(operation: Operation, { imageSizes, nowMs }: SummaryParts): OperationSummary {
  const { id, kind, status, error, createdAt, imageId } = operation;
  const image = resultImage(operation);
  const cpuMs = figureOf(operation, "cpu_time_ms");
  const memoryBytes = figureOf(operation, "memory_bytes");
  return {
    uuid: id,
    // This dialect has no checkpoints; one is read as a run without a command.
    kind: kind === "image_import" ? kind : "instance",
    status,
    error: error?.message ?? null,
    created_at: isoTime(createdAt),
    duration: durationMs(operation, nowMs) / SECOND_MS,
    image_uuid: kind === "image_import" ? null : imageId,
    result_image_uuid: image,
    image_size: image === null ? null : (imageSizes.get(image) ?? null),
    consumed_cpu: cpuMs === null ? null : cpuMs / SECOND_MS,
    consumed_memory: memoryBytes === null ? null : Math.ceil(memoryBytes / KIB_BYTES),
  };
}

/** A figure of the resources of a run; null when unknown. A failed run has it in the details of its error. */
function figureOf({ result, error }: Operation, name: "cpu_time_ms" | "memory_bytes"): number | null {
  const value = ((result ?? error?.details) as Record<string, unknown> | undefined)?.[name];
  return typeof value === "number" ? value : null;
}

/** The `result` of an operation; null before its end. */
export function resultOf(operation: Operation): { readonly image: string | null; readonly tag: string | null } | null {
  if (!isTerminal(operation.status)) return null;
  const { tag = null } = (operation.result ?? {}) as AnyResult;
  return { image: resultImage(operation), tag };
}
