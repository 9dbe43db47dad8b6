import {
  and,
  asc,
  count,
  desc,
  eq,
  getTableColumns,
  gte,
  inArray,
  isNotNull,
  isNull,
  lt,
  type SQL,
  sql,
} from "drizzle-orm";
import { ApiError, type ErrorBody } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId, SandboxId } from "../../domain/ids.ts";
import {
  failureTransition,
  nextSandboxState,
  noMachine,
  type SandboxState,
  type SandboxTransition,
  sandboxConflict,
  sandboxStatesAllowing,
} from "../../domain/sandbox.ts";
import { ensureAccount } from "../accounts.ts";
import { type Database, isOneOf, statement } from "../database.ts";
import { getImage } from "../images/images.ts";
import { deleteMemoryImageOf, memoryImageOf } from "./memory-images.ts";
import { sandboxes } from "./schema.ts";
import { insertState } from "./states.ts";

export type SandboxRow = typeof sandboxes.$inferSelect;

/** The parent of a forked sandbox, and the last number of its processes after a fork with memory. */
export type SandboxOrigin = Partial<Pick<SandboxRow, "parentId" | "forkedAtEvent" | "spidLast">>;

/** A sandbox that is about to begin on the image `imageId`. Its pauses keep its memory only on request by default. */
export type NewSandbox = Omit<
  SandboxRow,
  | "headId"
  | "headSeq"
  | "state"
  | "envNames"
  | "createdAt"
  | "stateAt"
  | "endedAt"
  | "error"
  | "imageId"
  | "pauseMemory"
  | "ending"
  | "usedAt"
  | keyof SandboxOrigin
> &
  Partial<Pick<SandboxRow, "pauseMemory">> &
  SandboxOrigin & { readonly imageId: ImageId };

/** The last state change of a sandbox. */
export interface Transitioned {
  readonly from: SandboxState;
  readonly row: SandboxRow;
}

const rowById = statement((orm) =>
  orm
    .select()
    .from(sandboxes)
    .where(eq(sandboxes.id, sql.placeholder("id")))
    .prepare(),
);

/** A sandbox of any account; null when there is none. The row is shared, so callers must not change it. */
export function findSandbox(db: Database, id: SandboxId): SandboxRow | null {
  return db.cached(`sandbox ${id}`, () => rowById(db).get({ id }) ?? null);
}

/** The sandbox, if the account has it. */
export function getSandbox(db: Database, accountId: AccountId, id: SandboxId): SandboxRow | null {
  const row = findSandbox(db, id);
  return row?.accountId === accountId ? row : null;
}

/** @throws ApiError `not_found` when the account has no such sandbox */
export function requireSandbox(db: Database, accountId: AccountId, id: SandboxId): SandboxRow {
  const row = getSandbox(db, accountId, id);
  if (row === null) throw new ApiError("not_found", "no such sandbox", { uuid: id });
  return row;
}

const idByName = statement((orm) =>
  orm
    .select({ id: sandboxes.id })
    .from(sandboxes)
    .where(
      and(
        eq(sandboxes.accountId, sql.placeholder("accountId")),
        eq(sandboxes.name, sql.placeholder("name")),
        isNull(sandboxes.endedAt),
      ),
    )
    .prepare(),
);

/** The sandbox of the account with that name that has not ended; null when there is none. */
export function sandboxNamed(db: Database, accountId: AccountId, name: string): SandboxRow | null {
  const row = idByName(db).get({ accountId, name });
  return row === undefined ? null : getSandbox(db, accountId, row.id);
}

/** The sandbox that an operation is an instance of now; null when there is none. */
export function sandboxOfOperation(db: Database, operationId: OperationId): SandboxRow | null {
  return db.orm.select().from(sandboxes).where(eq(sandboxes.operationId, operationId)).get() ?? null;
}

/** By the times at which they were made, then by their ids. */
export type ListingOrder = "oldest first" | "newest first";

export interface SandboxFilter {
  /** in one of these states; empty: that have not ended */
  readonly states: readonly SandboxState[];
  readonly name?: string | undefined;
  /** only those with all of these entries */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /** only those that were made at this time or later, in `milliseconds` since the epoch */
  readonly sinceMs?: number | undefined;
  /** absent: the newest first */
  readonly order?: ListingOrder | undefined;
  /** only those behind this one in the order of the listing */
  readonly after?: SandboxPlace | undefined;
  readonly limit: number;
}

/** A sandbox without its variables, which can be megabytes. */
export type ListedSandbox = Omit<SandboxRow, "env">;
const { env: _env, ...listedColumns } = getTableColumns(sandboxes);

/** A place in the order of the listing. */
export type SandboxPlace = Pick<SandboxRow, "createdAt" | "id">;

/** Number of sandboxes among which one page is searched by name or metadata: ended ones can be a million. */
export const SEARCHED_COUNT_MAX = 10_000;

export interface SandboxListing {
  readonly rows: readonly ListedSandbox[];
  /** the last sandbox that was searched, behind which there may be more; null: all were searched, or `limit` reached */
  readonly searchedTo: SandboxPlace | null;
}

export function listSandboxes(db: Database, accountId: AccountId, filter: SandboxFilter): SandboxListing {
  const { states, name, metadata = {}, sinceMs, order = "newest first", after, limit } = filter;
  const isNewestFirst = order === "newest first";
  const { createdAt, id } = sandboxes;
  const hasEntry = Object.entries(metadata).map(
    ([key, value]) =>
      sql`exists (select 1 from json_each(${sandboxes.metadata}) where "key" = ${key} and "value" = ${value})`,
  );
  const range = and(
    eq(sandboxes.accountId, accountId),
    states.includes("ended") ? undefined : isNull(sandboxes.endedAt),
    sinceMs === undefined ? undefined : gte(createdAt, sinceMs),
    after === undefined ? undefined : place(isNewestFirst ? "<" : ">", after),
  );
  const orderBy = isNewestFirst ? [desc(createdAt), desc(id)] : [asc(createdAt), asc(id)];
  const isSearch = name !== undefined || hasEntry.length > 0;
  const places = db.orm
    .select({ createdAt, id })
    .from(sandboxes)
    .where(range)
    .orderBy(...orderBy);
  const end = isSearch
    ? places
        .limit(1)
        .offset(SEARCHED_COUNT_MAX - 1)
        .get()
    : undefined;
  const rows = db.orm
    .select(listedColumns)
    .from(sandboxes)
    .where(
      and(
        range,
        states.length === 0 ? undefined : inArray(sandboxes.state, [...states]),
        name === undefined ? undefined : eq(sandboxes.name, name),
        end === undefined ? undefined : place(isNewestFirst ? ">=" : "<=", end),
        ...hasEntry,
      ),
    )
    .orderBy(...orderBy)
    .limit(limit)
    .all();
  return { rows, searchedTo: rows.length < limit ? (end ?? null) : null };
}

/** Compares the place of a sandbox with another one. */
function place(operator: "<" | ">" | "<=" | ">=", { createdAt, id }: SandboxPlace): SQL {
  return sql`(${sandboxes.createdAt}, ${sandboxes.id}) ${sql.raw(operator)} (${createdAt}, ${id})`;
}

/** All sandboxes in one of the states, of all accounts. */
export function sandboxesIn(db: Database, states: readonly SandboxState[]): SandboxRow[] {
  return db.orm
    .select()
    .from(sandboxes)
    .where(and(inArray(sandboxes.state, [...states]), isNull(sandboxes.endedAt)))
    .all();
}

/** Paused sandboxes for which a request waits that has saved their files. */
export function sandboxesToComplete(db: Database): SandboxRow[] {
  return db.orm
    .select()
    .from(sandboxes)
    .where(and(eq(sandboxes.state, "paused"), isNotNull(sandboxes.ending)))
    .all();
}

/** The sandboxes whose states changed within `ms` before the latest change of all. */
export function latestChanged(db: Database, ms: number): SandboxRow[] {
  const latest = sql`(select max(${sandboxes.stateAt}) from ${sandboxes})`;
  return db.orm.select().from(sandboxes).where(sql`${sandboxes.stateAt} >= ${latest} - ${ms}`).all();
}

/** Number of sandboxes of an account that have not ended. */
export function countLiveSandboxes(db: Database, accountId: AccountId): number {
  const isLive = and(eq(sandboxes.accountId, accountId), isNull(sandboxes.endedAt));
  return db.orm.select({ count: count() }).from(sandboxes).where(isLive).get()?.count ?? 0;
}

/**
 * Inserts a sandbox that starts, with its first state. To be called in a transaction.
 * @throws ApiError `conflict` for a name that another sandbox has; `not_found` for an image that is gone
 */
export function insertSandbox(db: Database, sandbox: NewSandbox, now: number): SandboxRow {
  const { id, accountId, name, imageId, env } = sandbox;
  ensureAccount(db, accountId, now);
  if (getImage(db, accountId, imageId) === null) throw new ApiError("not_found", "the image is gone");
  requireFreeName(db, accountId, name);
  const times = { createdAt: now, stateAt: now, endedAt: null };
  const state = { state: "starting" as const, headId: imageId, headSeq: 0, error: null };
  const defaults = { parentId: null, forkedAtEvent: null, spidLast: 1, pauseMemory: false, ending: null, usedAt: null };
  const row: SandboxRow = { ...defaults, ...sandbox, ...state, ...times, envNames: Object.keys(env) };
  db.orm.insert(sandboxes).values(row).run();
  insertState(db, { sandboxId: id, imageId, parentSeq: null, reason: "start" }, now);
  return row;
}

/** @throws ApiError `conflict` when another sandbox of the account that has not ended has the name */
export function requireFreeName(db: Database, accountId: AccountId, name: string): void {
  if (sandboxNamed(db, accountId, name) === null) return;
  throw new ApiError("conflict", `another sandbox is named ${name}`, { field: "name", name });
}

/** As `noMachine`, for the present state. */
export function noMachineOf(db: Database, id: SandboxId): ApiError {
  return noMachine(findSandbox(db, id)?.state ?? "ended");
}

/** The columns that a change of state may set. */
export type SandboxChanges = Partial<
  Pick<SandboxRow, "headId" | "headSeq" | "operationId" | "endsAt" | "spidLast" | "error" | "ending">
>;

/**
 * Changes the state by compare-and-set. To be called in a transaction. A sandbox that gets no machine has no operation and
 * no deadline; one that ends loses its variables. Its kept memory stays only until another machine runs, or its head moves. The
 * rest of a request that follows a save stays until the transition after it.
 * @throws ApiError `conflict` when the state does not allow the transition; `not_found` when there is no such sandbox
 */
export function changeState(
  db: Database,
  id: SandboxId,
  transition: SandboxTransition,
  { now, ...changes }: SandboxChanges & { readonly now: number },
): Transitioned {
  const before = rowById(db).get({ id });
  if (before === undefined) throw new ApiError("not_found", "no such sandbox", { uuid: id });
  const to = nextSandboxState(before.state, transition);
  if (to === null) throw sandboxConflict(before.state);
  const isStill = to === "paused" || to === "failed" || to === "ended";
  const row: SandboxRow = {
    ...before,
    ...(isStill ? { operationId: null, endsAt: null, usedAt: null } : {}),
    // Another request may have to follow the save.
    ending: transition === "paused" && before.ending?.then != null ? before.ending : null,
    error: null,
    ...changes,
    ...(to === "ended" ? { endedAt: now, env: {}, boot: null } : {}),
    state: to,
    stateAt: now,
  };
  const { id: _id, accountId: _account, createdAt: _created, ...values } = row;
  db.orm.update(sandboxes).set(values).where(eq(sandboxes.id, id)).run();
  const keepsMemory = to === "resuming" || (to === "paused" && transition !== "rollback");
  if (!keepsMemory) deleteMemoryImageOf(db, id);
  return { from: before.state, row };
}

/** Sets columns that are not part of the state. Returns the new row. To be called in a transaction. */
export function updateSandbox(
  db: Database,
  id: SandboxId,
  values: Partial<Omit<SandboxRow, "id" | "state" | "stateAt" | "endedAt">>,
): SandboxRow {
  if (Object.keys(values).length > 0) db.orm.update(sandboxes).set(values).where(eq(sandboxes.id, id)).run();
  const row = rowById(db).get({ id });
  if (row === undefined) throw new ApiError("not_found", "no such sandbox", { uuid: id });
  return row;
}

/**
 * Makes the sandbox of an operation that did not succeed `failed`, or `paused` as it was, in the caller's transaction:
 * nothing when the operation is not the present instance of a sandbox.
 */
export function failSandboxOf(db: Database, operationId: OperationId, error: ErrorBody, now: number): void {
  const row = sandboxOfOperation(db, operationId);
  if (row !== null && sandboxStatesAllowing("fail").includes(row.state))
    changeState(db, row.id, failureOf(db, row), { error, now });
}

/** As `failureTransition`. One whose memory is still whole stays paused. */
export function failureOf(db: Database, row: SandboxRow): "fail" | "stay" {
  const keepsMemory = row.state === "resuming" && memoryImageOf(db, row.id) !== null;
  return keepsMemory ? "stay" : failureTransition(row);
}

/** The subset of `ids` that have a row. */
export function existingSandboxes(db: Database, ids: readonly string[]): Set<string> {
  const rows = db.orm.select({ id: sandboxes.id }).from(sandboxes).where(isOneOf(sandboxes.id, ids)).all();
  return new Set(rows.map((row) => row.id));
}

/** Deletes at most `limit` sandboxes that ended before `beforeMs`. Returns their ids. */
export function deleteSandboxesEndedBefore(db: Database, beforeMs: number, limit: number): SandboxId[] {
  return db.transaction((tx) => {
    const ids = tx
      .select({ id: sandboxes.id })
      .from(sandboxes)
      .where(and(isNotNull(sandboxes.endedAt), lt(sandboxes.endedAt, beforeMs)))
      .limit(limit)
      .all()
      .map(({ id }) => id);
    for (const id of ids) tx.delete(sandboxes).where(eq(sandboxes.id, id)).run();
    return ids;
  });
}
