import { given } from "../../../domain/given.ts";
import { isoTime } from "../../../domain/ids.ts";
import type {
  BranchImage as StoredImage,
  BranchOperation as StoredOperation,
} from "../../../service/branches/branches.ts";
import { imageOf, makingKind } from "../image-wire.ts";
import type { BranchImage, BranchOperation } from "../schema/branches.ts";

/** The row of an image. */
export function imageRow(row: StoredImage): BranchImage {
  const { parentId, skippedCount, exitCode } = row;
  return {
    type: "image",
    ...imageOf(row),
    ...given({ parent: parentId }),
    ...(skippedCount === 0 ? {} : { skipped: skippedCount }),
    size_bytes: row.sizeBytes,
    kind: makingKind(row),
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
