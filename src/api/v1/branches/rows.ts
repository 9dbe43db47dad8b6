import { given } from "../../../domain/given.ts";
import { isoTime } from "../../../domain/ids.ts";
import type {
  BranchImage as StoredImage,
  BranchOperation as StoredOperation,
} from "../../../service/branches/branches.ts";
import { imageOf } from "../image-wire.ts";
import type { BranchImage, BranchOperation } from "../schema/branches.ts";

/** The row of an image. */
export function imageRow(row: StoredImage): BranchImage {
  const { parentId, skippedCount, exitCode } = row;
  // A checkpoint stores the command of an instance that had not ended, and so no exit code.
  const kind = row.isImport ? "image_import" : exitCode === null && !row.timedOut ? "checkpoint" : "instance";
  return {
    type: "image",
    ...imageOf(row),
    ...given({ parent: parentId }),
    ...(skippedCount === 0 ? {} : { skipped: skippedCount }),
    size_bytes: row.sizeBytes,
    kind,
    operation: row.operationId,
    ...given({ about: row.about, exit_code: exitCode }),
    ...(row.timedOut ? { timed_out: true } : {}),
    ...(row.network ? { network: true } : {}),
  };
}

/** The row of an operation. */
export function operationRow(row: StoredOperation): BranchOperation {
  const { id, kind, status, imageId, startedAt, finishedAt, resultId } = row;
  return {
    type: "operation",
    uuid: id,
    kind,
    status,
    ...given({ image: imageId, about: row.about }),
    created_at: isoTime(row.createdAt),
    ...(startedAt === null ? {} : { started_at: isoTime(startedAt) }),
    ...(finishedAt === null ? {} : { finished_at: isoTime(finishedAt) }),
    ...given({ result: resultId }),
  };
}
