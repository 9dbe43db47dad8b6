import { and, asc, eq, inArray, isNull, sql } from "drizzle-orm";
import type { AnySQLiteColumn } from "drizzle-orm/sqlite-core";
import { ApiError } from "../domain/errors.ts";
import type { AccountId, FileId, OperationId } from "../domain/ids.ts";
import type { OperationKind } from "../domain/operation.ts";
import { type Database, isOneOf, statement } from "./database.ts";
import {
  files,
  operationFiles,
  operationRequests,
  operationSecrets,
  operations,
  type RequestedResources,
} from "./schema.ts";

/** Requests with a longer body are deleted when their operation ends. Commands have the same limit. */
export const KEPT_CHARACTERS_MAX = 65_536;

/** The stored parts of a request. */
export interface NewRequest {
  /** kept as long as the operation, unless it is long; never contains a secret */
  readonly body: object;
  /** deleted when the operation ends */
  readonly secrets?: object | null;
  readonly resources?: RequestedResources | null;
  /** size of everything that waits on the disk for the operation, in `bytes` */
  readonly sizeBytes?: number;
  /** files that the operation needs: they count as used now, and stay until it ends */
  readonly fileIds?: readonly FileId[];
}

const insertBody = statement((orm) =>
  orm
    .insert(operationRequests)
    .values({
      operationId: sql.placeholder("operationId"),
      body: sql.placeholder("body"),
      // The encoder of the column would make a text of null.
      resources: sql`${sql.placeholder("resources")}`,
      sizeBytes: sql.placeholder("sizeBytes"),
    })
    .prepare(),
);

/** To be called in a transaction. @throws ApiError `not_found` when a file no longer exists */
export function insertRequest(db: Database, operationId: OperationId, request: NewRequest, now: number): void {
  const { body, secrets = null, resources = null, sizeBytes = 0 } = request;
  insertBody(db).run({
    operationId,
    body,
    resources: resources === null ? null : JSON.stringify(resources),
    sizeBytes,
  });
  // These two are rare. They are not prepared, because a prepared statement would hold the secrets as its last parameters.
  if (secrets !== null) db.orm.insert(operationSecrets).values({ operationId, body: secrets }).run();
  const fileIds = [...new Set(request.fileIds ?? [])];
  if (fileIds.length === 0) return;
  const { changes } = db.orm.update(files).set({ lastUsedAt: now }).where(inArray(files.id, fileIds)).run();
  if (changes !== fileIds.length) throw new ApiError("not_found", "a file of the request is gone");
  db.orm
    .insert(operationFiles)
    .values(fileIds.map((fileId) => ({ operationId, fileId })))
    .run();
}

const isOfOperation = (column: AnySQLiteColumn) => eq(column, sql.placeholder("id"));
const deleteSecrets = statement((orm) =>
  orm.delete(operationSecrets).where(isOfOperation(operationSecrets.operationId)).prepare(),
);
const deleteClaims = statement((orm) =>
  orm.delete(operationFiles).where(isOfOperation(operationFiles.operationId)).prepare(),
);
const deleteLongBody = statement((orm) =>
  orm
    .delete(operationRequests)
    .where(
      and(
        isOfOperation(operationRequests.operationId),
        sql`length(${operationRequests.body}) > ${KEPT_CHARACTERS_MAX}`,
      ),
    )
    .prepare(),
);

/** Deletes the secrets of an ended operation, its claims on files, and its body if that is long. */
export function forgetSecrets(db: Database, id: OperationId): void {
  deleteSecrets(db).run({ id });
  deleteClaims(db).run({ id });
  deleteLongBody(db).run({ id });
}

/** A request as it is stored; `secrets` is null when there are none, and after the operation has ended. */
export interface StoredRequest {
  readonly body: object;
  readonly secrets: object | null;
  readonly resources: RequestedResources | null;
}

const requestById = statement((orm) =>
  orm
    .select({ body: operationRequests.body, resources: operationRequests.resources, secrets: operationSecrets.body })
    .from(operationRequests)
    .leftJoin(operationSecrets, eq(operationSecrets.operationId, operationRequests.operationId))
    .where(isOfOperation(operationRequests.operationId))
    .prepare(),
);

export function operationRequest(db: Database, id: OperationId): StoredRequest | null {
  return requestById(db).get({ id }) ?? null;
}

/** True for the instance of a sandbox that continues with kept memory. */
export function continuesMemory(db: Database, id: OperationId): boolean {
  const body = operationRequest(db, id)?.body ?? {};
  return "memoryImageId" in body;
}

/** Longest line of `requestLines`, in `characters`. */
export const LINE_CHARACTERS_MAX = 80;
/** Bodies that are longer, in `characters`, get no line: each is parsed. */
const LINE_BODY_CHARACTERS_MAX = 8192;

/**
 * One line about each request: the expression of a shell, the arguments of a command, the reference of an import. An archive,
 * a checkpoint and a long request have none. Each body is parsed, so many ids block the event loop for long.
 */
export function requestLines(db: Database, ids: readonly OperationId[]): Map<OperationId, string> {
  const body = sql`${operationRequests.body}`;
  // A shell's arguments are its own name, an option, the expression.
  const words = sql`(select group_concat(value, ' ') from (select value from json_each(${body}, '$.argv') limit 16))`;
  const line = sql<
    string | null
  >`substr(case when json_extract(${body}, '$.shell') then json_extract(${body}, '$.argv[2]')
    when json_type(${body}, '$.argv') = 'array' then ${words}
    else json_extract(${body}, '$.source.reference') end, 1, ${LINE_CHARACTERS_MAX})`;
  const rows = db.orm
    .select({ id: operationRequests.operationId, line })
    .from(operationRequests)
    .where(and(isOneOf(operationRequests.operationId, ids), sql`length(${body}) <= ${LINE_BODY_CHARACTERS_MAX}`))
    .all();
  return new Map(rows.flatMap(({ id, line }) => (line === null ? [] : [[id, line.toWellFormed()]])));
}

/** A waiting operation, with the data that the queue needs. */
export interface QueuedOperation {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
  readonly resources: RequestedResources | null;
  readonly sizeBytes: number;
}

/** All PENDING operations, oldest first, without the bodies of their requests. */
export function queuedOperations(db: Database): QueuedOperation[] {
  const { id, accountId, kind, status, createdAt, finishedAt } = operations;
  return db.orm
    .select({ id, accountId, kind, resources: operationRequests.resources, sizeBytes: operationRequests.sizeBytes })
    .from(operations)
    .leftJoin(operationRequests, eq(operationRequests.operationId, id))
    .where(and(eq(status, "PENDING"), isNull(finishedAt)))
    .orderBy(asc(createdAt), asc(id))
    .all()
    .map((row) => ({ ...row, sizeBytes: row.sizeBytes ?? 0 }));
}

/** The subset of `ids` that have not ended. */
export function liveOperationsOf(db: Database, ids: readonly OperationId[]): Set<OperationId> {
  const rows = db.orm
    .select({ id: operations.id })
    .from(operations)
    .where(and(isOneOf(operations.id, ids), isNull(operations.finishedAt)))
    .all();
  return new Set(rows.map((row) => row.id));
}
