import { and, eq, isNull, ne } from "drizzle-orm";
import type { AccountId, SandboxId } from "../../domain/ids.ts";
import type { Database } from "../database.ts";
import { sandboxes } from "../sandboxes/schema.ts";
import { sandboxRecords } from "./schema.ts";

export type RecordRow = typeof sandboxRecords.$inferSelect;

/** The record of a sandbox; null when it was not made by this dialect. The row is shared, so callers must not change it. */
export function findRecord(db: Database, sandboxId: SandboxId): RecordRow | null {
  return db.cached(`sandbox record ${sandboxId}`, () => {
    return db.orm.select().from(sandboxRecords).where(eq(sandboxRecords.sandboxId, sandboxId)).get() ?? null;
  });
}

/** The ids of all sandboxes that run or can be resumed, with the keys of their records; null: a sandbox without a record. */
export function liveOwners(db: Database): readonly { readonly sandboxId: SandboxId; readonly keyId: string | null }[] {
  return db.orm
    .select({ sandboxId: sandboxes.id, keyId: sandboxRecords.keyId })
    .from(sandboxes)
    .leftJoin(sandboxRecords, eq(sandboxRecords.sandboxId, sandboxes.id))
    .where(and(isNull(sandboxes.endedAt), ne(sandboxes.state, "failed")))
    .all();
}

/** Inserts the record of a new sandbox, in the transaction that inserts the sandbox. */
export function insertRecord(db: Database, row: RecordRow): void {
  db.orm.insert(sandboxRecords).values(row).run();
}

/** The sandboxes of an account that this dialect made, and that have failed. */
export function failedSandboxes(db: Database, accountId: AccountId): SandboxId[] {
  return db.orm
    .select({ id: sandboxes.id })
    .from(sandboxes)
    .innerJoin(sandboxRecords, eq(sandboxRecords.sandboxId, sandboxes.id))
    .where(and(eq(sandboxes.accountId, accountId), isNull(sandboxes.endedAt), eq(sandboxes.state, "failed")))
    .all()
    .map(({ id }) => id);
}

/** Changes a record; nothing when the sandbox has none. */
export function updateRecord(
  db: Database,
  sandboxId: SandboxId,
  values: Partial<Omit<RecordRow, "sandboxId" | "keyId">>,
): void {
  db.orm.update(sandboxRecords).set(values).where(eq(sandboxRecords.sandboxId, sandboxId)).run();
}
