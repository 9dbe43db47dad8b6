import { and, asc, eq, gt, or, sql } from "drizzle-orm";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import type { OperationKind, OperationStatus } from "../../domain/operation.ts";
import { type Database, isOneOf } from "../database.ts";
import { withExistingImage } from "../operations.ts";
import { operations } from "../schema.ts";

/** An operation that extends the branches. Times are `milliseconds` since the epoch. */
export interface BranchOperation {
  readonly id: OperationId;
  readonly kind: OperationKind;
  readonly status: OperationStatus;
  /** the image on which it runs while that exists; null for an import */
  readonly imageId: ImageId | null;
  readonly createdAt: number;
  readonly startedAt: number | null;
  readonly finishedAt: number | null;
  /** the image that it made or reused; null when there is none */
  readonly resultId: ImageId | null;
}

const columns = {
  id: operations.id,
  kind: operations.kind,
  status: operations.status,
  imageId: operations.imageId,
  createdAt: operations.createdAt,
  startedAt: operations.startedAt,
  finishedAt: operations.finishedAt,
  resultId: sql<ImageId | null>`json_extract(${operations.result}, '$.image')`,
};

/** A page of the operations of one state, the oldest first. */
export function branchOperations(
  db: Database,
  accountId: AccountId,
  status: OperationStatus,
  after: Pick<BranchOperation, "createdAt" | "id"> | null,
  limit: number,
): BranchOperation[] {
  const { createdAt, id } = operations;
  const isAfter =
    after === null
      ? undefined
      : or(gt(createdAt, after.createdAt), and(eq(createdAt, after.createdAt), gt(id, after.id)));
  return db.orm
    .select(columns)
    .from(operations)
    .where(and(eq(operations.accountId, accountId), eq(operations.status, status), isAfter))
    .orderBy(asc(createdAt), asc(id))
    .limit(limit)
    .all();
}

/** Those of `ids` that the account has, the oldest first. */
export function branchOperationsOf(db: Database, accountId: AccountId, ids: readonly OperationId[]): BranchOperation[] {
  return db.orm
    .select(columns)
    .from(operations)
    .where(and(isOneOf(operations.id, ids), eq(operations.accountId, accountId)))
    .all()
    .map((row) => withExistingImage(db, row))
    .sort((a, b) => a.createdAt - b.createdAt || (a.id < b.id ? -1 : 1));
}
