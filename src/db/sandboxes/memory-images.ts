import { eq, sql } from "drizzle-orm";
import type { SandboxId } from "../../domain/ids.ts";
import { type Database, statement } from "../database.ts";
import { memoryImages } from "./schema.ts";

type MemoryImageRow = typeof memoryImages.$inferSelect;

/** An image of a sandbox's memory whose files are in place, as the operation that made it publishes it. */
export type NewMemoryImage = Pick<MemoryImageRow, "id" | "accountId" | "imageId" | "sizeBytes" | "memoryBytes">;

const rowOfSandbox = statement((orm) =>
  orm
    .select()
    .from(memoryImages)
    .where(eq(memoryImages.sandboxId, sql.placeholder("id")))
    .prepare(),
);

/** The memory of a paused sandbox; null: none is kept. */
export function memoryImageOf(db: Database, id: SandboxId): MemoryImageRow | null {
  return rowOfSandbox(db).get({ id }) ?? null;
}

/** To be called in the transaction that pauses the sandbox. */
export function insertMemoryImage(db: Database, sandboxId: SandboxId, image: NewMemoryImage, now: number): void {
  db.orm
    .insert(memoryImages)
    .values({ ...image, sandboxId, createdAt: now, problem: null })
    .run();
}

const deleteOfSandbox = statement((orm) =>
  orm
    .delete(memoryImages)
    .where(eq(memoryImages.sandboxId, sql.placeholder("id")))
    .prepare(),
);

/** Deletes the row of a sandbox's memory. The directory follows. Returns false when there was none. */
export function deleteMemoryImageOf(db: Database, id: SandboxId): boolean {
  return deleteOfSandbox(db).run({ id }).changes > 0;
}
