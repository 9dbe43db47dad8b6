import { and, desc, eq, getTableColumns, gte, lte } from "drizzle-orm";
import { unionAll } from "drizzle-orm/sqlite-core";
import type { AccountId, OperationId } from "../domain/ids.ts";
import type { OperationKind, OperationStatus } from "../domain/operation.ts";
import { type Database, isOneOf } from "./database.ts";
import type { Orm } from "./drizzle-client.ts";
import { type OperationRow, withExistingImage } from "./operations.ts";
import { LARGE_OFFSET_MIN, type ListWindow } from "./scans/scans.ts";
import { operations } from "./schema.ts";

export interface OperationFilter extends ListWindow {
  readonly status?: OperationStatus | undefined;
  readonly kind?: OperationKind | undefined;
  /** only operations of these kinds, two at least, unless `kind` is given */
  readonly kinds?: readonly OperationKind[] | undefined;
}

/** All columns but the audit of the network, which can be long. */
const { network: _network, ...listedColumns } = getTableColumns(operations);
/** An operation without the audit of its network. */
export type ListedOperation = Omit<OperationRow, "network">;

/** Newest first, then by id; a page past the end is empty. Blocks the event loop: only for small offsets. */
export function listOperationsSync(db: Database, accountId: AccountId, filter: OperationFilter): ListedOperation[] {
  const page = operationPage(db.orm, accountId, filter).as("page");
  return db.orm
    .select(listedColumns)
    .from(page)
    .innerJoin(operations, eq(operations.id, page.id))
    .orderBy(desc(operations.createdAt), desc(operations.id))
    .all()
    .map((row) => withExistingImage(db, row));
}

/** Newest first, then by id; a page past the end is empty. Skips a large offset in the scan thread. */
export async function listOperations(
  db: Database,
  accountId: AccountId,
  filter: OperationFilter,
): Promise<ListedOperation[]> {
  if (filter.offset < LARGE_OFFSET_MIN) return listOperationsSync(db, accountId, filter);
  const ids = await db.scans.ids<OperationId>(operationPage(db.orm, accountId, filter), {
    accountId,
    signal: filter.signal,
  });
  return db.orm
    .select(listedColumns)
    .from(operations)
    .where(isOneOf(operations.id, ids))
    .orderBy(desc(operations.createdAt), desc(operations.id))
    .all()
    .map((row) => withExistingImage(db, row));
}

/** Reads only a covering index, so that a large offset does not read the skipped rows. */
function operationPage(orm: Orm, accountId: AccountId, { kinds, ...filter }: OperationFilter) {
  const newestFirst = [desc(operations.createdAt), desc(operations.id)] as const;
  const page = { limit: filter.limit, offset: filter.offset };
  if (kinds === undefined || filter.kind !== undefined) {
    return matchingOperations(orm, accountId, filter)
      .orderBy(...newestFirst)
      .limit(page.limit)
      .offset(page.offset);
  }
  // Each kind is read in the order of its index, and SQLite merges them: none of other kinds is read.
  const [first, second, ...rest] = kinds.map((kind) => matchingOperations(orm, accountId, { ...filter, kind }));
  if (first === undefined || second === undefined) throw new Error("too few kinds of operations");
  return unionAll(first, second, ...rest)
    .orderBy(...newestFirst)
    .limit(page.limit)
    .offset(page.offset);
}

function matchingOperations(orm: Orm, accountId: AccountId, filter: Omit<OperationFilter, "kinds">) {
  const { status, kind, sinceMs, untilMs } = filter;
  return orm
    .select({ id: operations.id, createdAt: operations.createdAt })
    .from(operations)
    .where(
      and(
        eq(operations.accountId, accountId),
        status === undefined ? undefined : eq(operations.status, status),
        kind === undefined ? undefined : eq(operations.kind, kind),
        sinceMs === undefined ? undefined : gte(operations.createdAt, sinceMs),
        untilMs === undefined ? undefined : lte(operations.createdAt, untilMs),
      ),
    );
}
