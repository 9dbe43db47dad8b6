import { and, asc, eq, inArray, isNotNull, isNull, lt, type SQL, sql } from "drizzle-orm";
import { ApiError, type ErrorBody } from "../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../domain/ids.ts";
import type { NetworkAudit } from "../domain/network.ts";
import {
  nextStatus,
  type OperationKind,
  type OperationStatus,
  type OperationTransition,
  statusesAllowing,
} from "../domain/operation.ts";
import { ensureAccount } from "./accounts.ts";
import { type Database, isOneOf, statement } from "./database.ts";
import { getImage, imagesBeingRemoved } from "./images/images.ts";
import { forgetSecrets, insertRequest, type NewRequest } from "./requests.ts";
import { failSandboxOf } from "./sandboxes/rows.ts";
import { operations } from "./schema.ts";

export type OperationRow = typeof operations.$inferSelect;

/** Where a fork with memory began. */
export interface ForkOrigin {
  /** the operation whose machine was forked */
  readonly parentId: OperationId;
  /** its last event before the fork, in the log of its processes */
  readonly atEvent: number;
}

export interface NewOperation {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
  readonly request: NewRequest | null;
  readonly hadCredentials: boolean;
  /** the image that the operation uses; null: none */
  readonly imageId?: ImageId | null;
  /** absent: its machine is not forked */
  readonly fork?: ForkOrigin | undefined;
  readonly now: number;
  /** Changes further rows in the same transaction, which an error undoes. */
  readonly also?: ((id: OperationId) => void) | undefined;
}

/** The status that `change` leads to. @throws Error when there is not exactly one */
function targetOf(change: OperationTransition): OperationStatus {
  const targets = new Set(statusesAllowing(change).map((source) => nextStatus(source, change)));
  const [target] = targets;
  if (targets.size !== 1 || target === null || target === undefined) throw new Error(`${change} has no single target`);
  return target;
}

/** Compare-and-set: applies `change` if the operation's status and `guard` allow it. */
function transition(change: OperationTransition, values: Partial<Record<keyof OperationRow, SQL>>, guard?: SQL) {
  const allowed = statusesAllowing(change);
  return statement((orm) =>
    orm
      .update(operations)
      .set({ ...values, status: targetOf(change) })
      .where(and(eq(operations.id, sql.placeholder("id")), inArray(operations.status, allowed), guard))
      .prepare(),
  );
}

const at = sql`${sql.placeholder("at")}`;
/** The columns of an operation that its end sets. */
const outcome = {
  ...{ result: sql`${sql.placeholder("result")}`, error: sql`${sql.placeholder("error")}` },
  ...{ network: sql`${sql.placeholder("network")}`, finishedAt: at },
};
const started = transition("start", { startedAt: at });
const requeued = transition("requeue", { startedAt: sql`null` }, isNull(operations.cancelRequestedAt));
const succeeded = transition("succeed", outcome, isNull(operations.cancelRequestedAt));
const failed = transition("fail", outcome, isNull(operations.cancelRequestedAt));
const cancelled = transition("cancel", outcome, isNotNull(operations.cancelRequestedAt));

/** A transition to a terminal status, which also deletes the request's secrets. Returns whether it was allowed. */
function end(
  db: Database,
  change: typeof succeeded,
  id: OperationId,
  { result, error, network }: Partial<Pick<OperationRow, "result" | "error" | "network">>,
  at: number,
): boolean {
  const ended = { result: jsonOf(result), error: jsonOf(error), network: jsonOf(network) };
  if (change(db).run({ id, at, ...ended }).changes !== 1) return false;
  forgetSecrets(db, id);
  return true;
}

/** The stored form of a value: the encoder of a column would make a text of null. */
function jsonOf(value: object | null | undefined): string | null {
  return value === null || value === undefined ? null : JSON.stringify(value);
}

/**
 * Ends an EXECUTING operation with its result, in the caller's transaction. Returns false, and changes nothing, when it is
 * not EXECUTING or a cancel was accepted.
 */
export function succeedOperation(
  db: Database,
  id: OperationId,
  ended: Pick<OperationRow, "result" | "network">,
  now: number,
): boolean {
  return end(db, succeeded, id, ended, now);
}

const insertPending = statement((orm) =>
  orm
    .insert(operations)
    .values({
      ...{ id: sql.placeholder("id"), accountId: sql.placeholder("accountId"), kind: sql.placeholder("kind") },
      ...{ status: "PENDING", createdAt: sql.placeholder("now") },
      ...{ hadCredentials: sql.placeholder("hadCredentials"), imageId: sql.placeholder("imageId") },
      ...{ parentId: sql.placeholder("parentId"), forkedAtEvent: sql.placeholder("forkedAtEvent") },
    })
    .returning()
    .prepare(),
);

/**
 * Inserts the operation as PENDING, before any work begins.
 * @throws ApiError `not_found` when the image or a file no longer exists
 */
export function insertOperation(db: Database, operation: NewOperation): OperationRow {
  return db.transaction(() => insert(db, operation));
}

/** Inserts all of the operations, or none. @throws as `insertOperation` does */
export function insertOperations(db: Database, operations: readonly NewOperation[]): void {
  db.transaction(() => {
    for (const operation of operations) insert(db, operation);
  });
}

function insert(db: Database, operation: NewOperation): OperationRow {
  const { id, accountId, kind, request, hadCredentials, imageId = null, fork, now, also } = operation;
  ensureAccount(db, accountId, now);
  if (imageId !== null && getImage(db, accountId, imageId) === null) {
    throw new ApiError("not_found", "the image is gone");
  }
  const origin = { parentId: fork?.parentId ?? null, forkedAtEvent: fork?.atEvent ?? null };
  const row = insertPending(db).get({ id, accountId, kind, now, hadCredentials, imageId, ...origin });
  if (request !== null) insertRequest(db, id, request, now);
  also?.(id);
  return row;
}

const rowById = statement((orm) =>
  orm
    .select()
    .from(operations)
    .where(eq(operations.id, sql.placeholder("id")))
    .prepare(),
);

export function getOperation(db: Database, accountId: AccountId, id: OperationId): OperationRow | null {
  // Clients poll an operation many times between two changes.
  const row = db.cached(`operation ${id}`, () => {
    const read = rowById(db).get({ id });
    return read === undefined ? null : withExistingImage(db, read);
  });
  return row?.accountId === accountId ? row : null;
}

/** The row without an image that is being removed. */
export function withExistingImage<Row extends Pick<OperationRow, "imageId">>(db: Database, row: Row): Row {
  return row.imageId !== null && imagesBeingRemoved(db).has(row.imageId) ? { ...row, imageId: null } : row;
}

/**
 * Changes PENDING to EXECUTING. Returns false when the operation is not PENDING. A power failure may undo the change; then
 * the operation starts again, which is safe because it has not published anything.
 */
export function startOperation(db: Database, id: OperationId, now: number): boolean {
  return db.withoutSync(() => started(db).run({ id, at: now }).changes === 1);
}

/** Changes EXECUTING back to PENDING. Returns false when the operation is not EXECUTING, or a cancel was accepted. */
export function requeueOperation(db: Database, id: OperationId): boolean {
  return requeued(db).run({ id }).changes === 1;
}

/**
 * Ends an operation FAILED, or CANCELLED when a cancel was accepted, because an accepted cancel is a promise. Returns the
 * new status; null when the operation had already ended.
 * @param network audit of an instance's network until then
 */
export function failOperation(
  db: Database,
  id: OperationId,
  error: ErrorBody,
  now: number,
  network: NetworkAudit | null = null,
): "FAILED" | "CANCELLED" | null {
  return db.transaction(() => fail(db, id, { error, network }, now));
}

function fail(
  db: Database,
  id: OperationId,
  ended: Pick<OperationRow, "error" | "network">,
  now: number,
): "FAILED" | "CANCELLED" | null {
  if (!end(db, failed, id, ended, now)) {
    if (!end(db, cancelled, id, ended, now)) return null;
    failSandboxOf(db, id, CANCELLED_INSTANCE, now);
    return "CANCELLED";
  }
  if (ended.error !== null) failSandboxOf(db, id, ended.error, now);
  return "FAILED";
}

/** The error of a sandbox whose instance was cancelled. */
const CANCELLED_INSTANCE = new ApiError("conflict", "the instance of the sandbox was cancelled").body();

export type CancelOutcome = "cancelling" | "cancelled" | "terminal" | "not_found";

/**
 * Cancels an operation. PENDING becomes CANCELLED at once. EXECUTING is marked, so that it can no longer be published; its
 * executor then ends it. A terminal operation does not change.
 */
export function requestCancel(db: Database, accountId: AccountId, id: OperationId, now: number): CancelOutcome {
  return db.transaction((tx) => {
    const row = tx
      .select({ status: operations.status, cancelRequestedAt: operations.cancelRequestedAt })
      .from(operations)
      .where(and(eq(operations.id, id), eq(operations.accountId, accountId)))
      .get();
    if (row === undefined) return "not_found";
    if (nextStatus(row.status, "cancel") === null) return "terminal";
    if (row.cancelRequestedAt === null) {
      tx.update(operations).set({ cancelRequestedAt: now }).where(eq(operations.id, id)).run();
    }
    if (row.status !== "PENDING") return "cancelling";
    end(db, cancelled, id, {}, now);
    failSandboxOf(db, id, CANCELLED_INSTANCE, now);
    return "cancelled";
  });
}

function liveOperations(db: Database, status: OperationStatus): OperationRow[] {
  return db.orm
    .select()
    .from(operations)
    .where(and(eq(operations.status, status), isNull(operations.finishedAt)))
    .orderBy(asc(operations.createdAt), asc(operations.id))
    .all();
}

/** PENDING operations of all accounts, oldest first. */
export function pendingOperations(db: Database): OperationRow[] {
  return liveOperations(db, "PENDING");
}

/** EXECUTING operations of all accounts, oldest first. */
export function executingOperations(db: Database): OperationRow[] {
  return liveOperations(db, "EXECUTING");
}

/** An operation that a restart ended. */
export interface RecoveredOperation {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
  /** CANCELLED when a cancel was accepted; FAILED when it was executing or its credentials are lost */
  readonly status: "FAILED" | "CANCELLED";
  readonly error: ErrorBody;
}

export interface RecoveryOptions {
  /** EXECUTING operations whose machines run on */
  readonly kept: { has(id: OperationId): boolean };
  /** EXECUTING operations whose work has not begun: they become PENDING */
  readonly unbegun: { has(id: OperationId): boolean };
  /** Returns the error of an operation whose machine is gone. */
  readonly interrupted: (id: OperationId) => ErrorBody;
  /** of an operation that waited with credentials that only the memory held */
  readonly credentialsLost: ErrorBody;
  readonly now: number;
}

/**
 * To be called after a restart, before any work: ends operations that were EXECUTING, instances of sandboxes, and forks,
 * whose machines are gone (`interrupted`), and those that waited with credentials. Other PENDING operations can run.
 */
export function recoverOperations(db: Database, options: RecoveryOptions): RecoveredOperation[] {
  return db.transaction(() => {
    const executing = executingOperations(db).filter(({ id }) => !options.kept.has(id));
    const lost = executing.filter(({ id }) => !(options.unbegun.has(id) && requeueOperation(db, id)));
    const isLost = (row: OperationRow) => row.status === "EXECUTING" || row.kind === "sandbox" || row.parentId !== null;
    const waiting = pendingOperations(db).filter((row) => row.hadCredentials || isLost(row));
    return [...lost, ...waiting].flatMap((row) => {
      const { id, accountId, kind } = row;
      const error = isLost(row) ? options.interrupted(id) : options.credentialsLost;
      const status = fail(db, id, { error, network: null }, options.now);
      return status === null ? [] : [{ id, accountId, kind, status, error }];
    });
  });
}

/** The subset of `ids` that have a row. */
export function existingOperations(db: Database, ids: readonly string[]): Set<string> {
  const rows = db.orm.select({ id: operations.id }).from(operations).where(isOneOf(operations.id, ids)).all();
  return new Set(rows.map((row) => row.id));
}

/** Deletes at most `limit` terminal operations that finished before `beforeMs`, oldest first. Returns their ids. */
export function deleteOperationsFinishedBefore(db: Database, beforeMs: number, limit: number): OperationId[] {
  return db.transaction((tx) => {
    const rows = tx
      .select({ id: operations.id })
      .from(operations)
      .where(and(isNotNull(operations.finishedAt), lt(operations.finishedAt, beforeMs)))
      .orderBy(asc(operations.finishedAt))
      .limit(limit)
      .all();
    for (const { id } of rows) tx.delete(operations).where(eq(operations.id, id)).run();
    return rows.map((row) => row.id);
  });
}
