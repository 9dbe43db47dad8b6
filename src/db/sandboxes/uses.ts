import { and, eq, isNull, or, type SQL, sql } from "drizzle-orm";
import type { ImageId } from "../../domain/ids.ts";
import type { Orm } from "../drizzle-client.ts";
import { images } from "../schema.ts";
import { memoryImages, sandboxes, sandboxStates } from "./schema.ts";

/** A sandbox that has not ended began with the image `images`, or has it as its head, or below its kept memory. */
export function isOfSandbox(): SQL {
  // Each condition is a range of an index.
  const uses = (column: SQL) =>
    sql`exists (select 1 from ${sandboxes} where ${column} = ${images.id} and ${isNull(sandboxes.endedAt)})`;
  const memory = sql`exists (select 1 from ${memoryImages} where ${memoryImages.imageId} = ${images.id})`;
  return sql`(${uses(sql`${sandboxes.imageId}`)} or ${uses(sql`${sandboxes.headId}`)} or ${memory})`;
}

/** Whether a sandbox that has not ended began with the image, or has it as its head, or below its kept memory. */
export function hasSandbox(orm: Orm, id: ImageId): boolean {
  const user = orm
    .select({ id: sandboxes.id })
    .from(sandboxes)
    .where(and(or(eq(sandboxes.imageId, id), eq(sandboxes.headId, id)), isNull(sandboxes.endedAt)))
    .limit(1)
    .get();
  const memory = orm.select({ id: memoryImages.id }).from(memoryImages).where(eq(memoryImages.imageId, id)).limit(1);
  return user !== undefined || memory.get() !== undefined;
}

/**
 * Changes at most `limit` rows of sandboxes that name an image which is being removed. Its states are forgotten: those that
 * were saved after them get the ones before as parents. Returns the number of rows.
 */
export function forgetInSandboxes(tx: Orm, id: ImageId, limit: number): number {
  const states = tx.select().from(sandboxStates).where(eq(sandboxStates.imageId, id)).limit(limit).all();
  for (const state of states) forgetState(tx, state);
  let count = states.length;
  for (const column of ["imageId", "headId"] as const) {
    if (count >= limit) return count;
    const some = tx
      .select({ id: sandboxes.id })
      .from(sandboxes)
      .where(eq(sandboxes[column], id))
      .limit(limit - count);
    count += tx
      .update(sandboxes)
      .set({ [column]: null })
      .where(sql`${sandboxes.id} in ${some}`)
      .run().changes;
  }
  return count;
}

/** Deletes a state. Those that were saved after it get the one before it as their parent. */
export function forgetState(
  tx: Orm,
  { sandboxId, seq, parentSeq }: Pick<typeof sandboxStates.$inferSelect, "sandboxId" | "seq" | "parentSeq">,
): void {
  const isOf = eq(sandboxStates.sandboxId, sandboxId);
  tx.update(sandboxStates)
    .set({ parentSeq })
    .where(and(isOf, eq(sandboxStates.parentSeq, seq)))
    .run();
  tx.delete(sandboxStates)
    .where(and(isOf, eq(sandboxStates.seq, seq)))
    .run();
}
