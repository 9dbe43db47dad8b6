import { and, asc, eq, inArray, lt, sql } from "drizzle-orm";
import type { AccountId, MemoryImageId, SandboxId } from "../../domain/ids.ts";
import { type Database, statement } from "../database.ts";
import { memoryImages } from "./schema.ts";

export type MemoryImageRow = typeof memoryImages.$inferSelect;

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

/** Sets the reason why the memory of a sandbox cannot be resumed. */
export function setMemoryProblem(db: Database, id: SandboxId, problem: string): void {
  db.orm.update(memoryImages).set({ problem }).where(eq(memoryImages.sandboxId, id)).run();
}

/** Sets the space that an image takes. */
export function setMemorySize(db: Database, id: MemoryImageId, sizeBytes: number): void {
  db.orm.update(memoryImages).set({ sizeBytes }).where(eq(memoryImages.id, id)).run();
}

/** Every image; a host has few. */
export function allMemoryImages(db: Database): MemoryImageRow[] {
  return db.orm.select().from(memoryImages).orderBy(asc(memoryImages.createdAt)).all();
}

/** The subset of `ids` that have a row. */
export function existingMemoryImages(db: Database, ids: readonly MemoryImageId[]): Set<string> {
  const rows = db.orm
    .select({ id: memoryImages.id })
    .from(memoryImages)
    .where(inArray(memoryImages.id, [...ids]))
    .all();
  return new Set(rows.map(({ id }) => id));
}

/** Sizes of the images of an account, and of all, in `bytes`. */
export function memoryImageBytes(db: Database, accountId: AccountId): { readonly own: number; readonly all: number } {
  const sum = db.orm
    .select({
      own: sql<number>`coalesce(sum(case when ${memoryImages.accountId} = ${accountId} then ${memoryImages.sizeBytes} end), 0)`,
      all: sql<number>`coalesce(sum(${memoryImages.sizeBytes}), 0)`,
    })
    .from(memoryImages)
    .get();
  return sum ?? { own: 0, all: 0 };
}

/** Images that were made before `beforeMs`. */
export function memoryImagesBefore(db: Database, beforeMs: number): MemoryImageRow[] {
  return db.orm.select().from(memoryImages).where(lt(memoryImages.createdAt, beforeMs)).all();
}

/** Deletes the row of one image. Returns false when it is gone already. */
export function deleteMemoryImage(db: Database, { id, sandboxId }: Pick<MemoryImageRow, "id" | "sandboxId">): boolean {
  const isIt = and(eq(memoryImages.id, id), eq(memoryImages.sandboxId, sandboxId));
  return db.orm.delete(memoryImages).where(isIt).run().changes > 0;
}
