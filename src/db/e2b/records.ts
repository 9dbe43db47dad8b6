import { eq } from "drizzle-orm";
import type { SandboxId } from "../../domain/ids.ts";
import type { Database } from "../database.ts";
import { sandboxRecords } from "./schema.ts";

export type RecordRow = typeof sandboxRecords.$inferSelect;

/** The record of a sandbox; null when it was not made by this dialect. The row is shared, so callers must not change it. */
export function findRecord(db: Database, sandboxId: SandboxId): RecordRow | null {
  return db.cached(`sandbox record ${sandboxId}`, () => {
    return db.orm.select().from(sandboxRecords).where(eq(sandboxRecords.sandboxId, sandboxId)).get() ?? null;
  });
}

/** Changes a record; nothing when the sandbox has none. */
export function updateRecord(
  db: Database,
  sandboxId: SandboxId,
  values: Partial<Omit<RecordRow, "sandboxId" | "keyId">>,
): void {
  db.orm.update(sandboxRecords).set(values).where(eq(sandboxRecords.sandboxId, sandboxId)).run();
}
