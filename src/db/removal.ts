import { and, eq, gte, isNull, lt, ne, not, notExists, type SQL, sql } from "drizzle-orm";
import { alias } from "drizzle-orm/sqlite-core";
import type { AccountId, ImageId, LayerId } from "../domain/ids.ts";
import { type Database, isOneOf } from "./database.ts";
import type { Orm } from "./drizzle-client.ts";
import { deleteStep, pruneAncestors } from "./images/history.ts";
import { imagesBeingRemoved, REMOVED } from "./images/images.ts";
import { deleteMergedLayersOf } from "./images/merged-layers.ts";
import { forgetInSandboxes, hasSandbox, isOfSandbox } from "./sandboxes/uses.ts";
import { accounts, images, layers, operations, tags } from "./schema.ts";
import { isKeptSince } from "./templates/cache.ts";

/**
 * Rows that the removal of images changes or deletes in one transaction, which must not block the event loop; the tags of an
 * image, which are deleted with it, are not counted.
 */
export const REMOVED_ROWS_MAX = 200;
/** Layers that one transaction deletes. */
export const REMOVED_LAYERS_MAX = 100;

export type DeleteOutcome = { readonly deleted: LayerId } | "in_use" | "not_found";

/**
 * Deletes an image and its tag, unless a live operation or sandbox uses it. Returns its top layer: when `removeMore` is done, that
 * layer and those below it may be unreferenced.
 */
export function deleteImage(db: Database, accountId: AccountId, id: ImageId): DeleteOutcome {
  return db.transaction((tx) => deleteImageIn(tx, accountId, id));
}

/**
 * `deleteImage` inside a transaction.
 * @param before changes rows that name the image, when it is about to be deleted
 */
export function deleteImageIn(
  tx: Orm,
  accountId: AccountId,
  id: ImageId,
  before: () => void = () => undefined,
): DeleteOutcome {
  const row = tx
    .select({ layerId: images.layerId })
    .from(images)
    .where(and(eq(images.id, id), eq(images.accountId, accountId)))
    .get();
  if (row === undefined) return "not_found";
  const user = tx
    .select({ id: operations.id })
    .from(operations)
    .where(and(eq(operations.imageId, id), isNull(operations.finishedAt)))
    .limit(1)
    .get();
  if (user !== undefined || hasSandbox(tx, id)) return "in_use";
  before();
  removeImages(tx, [id]);
  return { deleted: row.layerId };
}

/** Removes images. Images that too many rows refer to are only hidden from all accounts, and `removeMore` must follow. */
function removeImages(tx: Orm, ids: readonly ImageId[]): void {
  const budget = { rows: REMOVED_ROWS_MAX };
  for (const id of ids) if (!removePart(tx, id, budget)) hide(tx, id);
}

function hide(tx: Orm, id: ImageId): void {
  tx.insert(accounts).values({ id: REMOVED, createdAt: 0 }).onConflictDoNothing().run();
  tx.delete(tags).where(eq(tags.imageId, id)).run();
  tx.update(images).set({ accountId: REMOVED, tagged: false }).where(eq(images.id, id)).run();
}

/**
 * Changes rows that name an image, and deletes its row when no more of them are left. Returns false when `budget` is used up
 * before that.
 */
function removePart(tx: Orm, id: ImageId, budget: { rows: number }): boolean {
  for (const change of [forgetInOperations, forgetInSandboxes, forgetInImages, pruneAncestors]) {
    budget.rows -= budget.rows > 0 ? change(tx, id, budget.rows) : 0;
    if (budget.rows <= 0) return false;
  }
  tx.delete(images).where(eq(images.id, id)).run();
  deleteStep(tx, id);
  budget.rows -= 1;
  return true;
}

/** Returns the number of rows that were changed. */
function forgetInOperations(tx: Orm, id: ImageId, limit: number): number {
  const some = tx.select({ id: operations.id }).from(operations).where(eq(operations.imageId, id)).limit(limit);
  return tx.update(operations).set({ imageId: null }).where(sql`${operations.id} in ${some}`).run().changes;
}

/** Returns the number of rows that were changed. */
function forgetInImages(tx: Orm, id: ImageId, limit: number): number {
  const some = tx.select({ id: images.id }).from(images).where(eq(images.parentId, id)).limit(limit);
  return tx.update(images).set({ parentId: null }).where(sql`${images.id} in ${some}`).run().changes;
}

/** Removes a part of the remaining rows of a deleted image. Returns false when more are left. */
export function removeMore(db: Database, id: ImageId): boolean {
  if (!imagesBeingRemoved(db).has(id)) return true;
  // After a power failure, the image exists as before, and is hidden.
  return db.withoutSync(() => db.transaction((tx) => removePart(tx, id, { rows: REMOVED_ROWS_MAX })));
}

/** An image that was deleted, with its top layer. */
export type RemovedImage = Pick<typeof images.$inferSelect, "id" | "accountId" | "layerId">;

/** Deletes those of `ids` that are still expired. `removeMore` must follow. */
export function deleteExpiredImages(tx: Orm, ids: readonly ImageId[], beforeMs: number): readonly RemovedImage[] {
  // Tag and age are checked here: in the query, they would make SQLite read all expired images by their index.
  const rows = tx
    .select({
      id: images.id,
      accountId: images.accountId,
      layerId: images.layerId,
      tagged: images.tagged,
      createdAt: images.createdAt,
    })
    .from(images)
    .where(and(isOneOf(images.id, ids), isUnused(tx, beforeMs)))
    .all()
    .filter(({ accountId, tagged, createdAt }) => accountId !== REMOVED && !tagged && createdAt < beforeMs);
  removeImages(
    tx,
    rows.map((row) => row.id),
  );
  return rows;
}

/** The image has no tag, was made before `beforeMs`, and is unused. */
export function isExpired(orm: Orm, beforeMs: number) {
  const isOld = and(eq(images.tagged, false), lt(images.createdAt, beforeMs), ne(images.accountId, REMOVED));
  return and(isOld, isUnused(orm, beforeMs));
}

/** No live operation or sandbox uses the image, and no operation or build was begun with it since `beforeMs`. */
function isUnused(orm: Orm, beforeMs: number) {
  const use = (isUse: SQL | undefined) =>
    orm
      .select({ id: operations.id })
      .from(operations)
      .where(and(eq(operations.imageId, images.id), isUse));
  // An operation ends after its creation. Both conditions are ranges of an index: an image may have many old operations.
  const isRecent = and(gte(operations.finishedAt, beforeMs), gte(operations.createdAt, beforeMs));
  const isFree = and(notExists(use(isNull(operations.finishedAt))), notExists(use(isRecent)), not(isOfSandbox()));
  return and(isFree, not(isKeptSince(orm, beforeMs)));
}

const child = alias(layers, "child");

/** The layer has no image and no layer above it. */
export function isUnreferenced(orm: Orm) {
  return and(
    notExists(orm.select({ one: sql`1` }).from(images).where(eq(images.layerId, layers.id))),
    notExists(orm.select({ one: sql`1` }).from(child).where(eq(child.parentId, layers.id))),
  );
}

/** Deleted layers, whose files the caller removes, and candidates that remain for the next transaction. */
export interface LayerRemoval {
  readonly layers: readonly LayerId[];
  readonly left: readonly LayerId[];
}

/**
 * Deletes the rows of unreferenced `candidates`, then of layers below them that become unreferenced, down to the first that
 * `isHeld`, and at most REMOVED_LAYERS_MAX of them. Merged layers that refer to them are deleted as well.
 */
export function deleteUnreferencedLayers(
  tx: Orm,
  candidates: readonly LayerId[],
  isHeld: (id: LayerId) => boolean,
): LayerRemoval {
  const removed: LayerId[] = [];
  const left: LayerId[] = [];
  for (const candidate of candidates) {
    const limit = REMOVED_LAYERS_MAX - removed.length;
    const chain = limit > 0 ? unreferencedChain(tx, candidate, limit) : [];
    const held = chain.findIndex(({ id }) => isHeld(id));
    const ids = (held === -1 ? chain : chain.slice(0, held)).map(({ id }) => id);
    if (ids.length > 0) {
      removed.push(...deleteMergedLayersOf(tx, ids), ...ids);
      tx.delete(layers).where(isOneOf(layers.id, ids)).run();
    }
    const next = limit > 0 ? chain.at(-1)?.parentId : candidate;
    if (held === -1 && ids.length >= limit && next != null) left.push(next);
  }
  return { layers: removed, left };
}

/** The layer, if it is unreferenced, followed by layers below it that only this chain refers to; at most `limit`. */
function unreferencedChain(tx: Orm, top: LayerId, limit: number): { id: LayerId; parentId: LayerId | null }[] {
  const rows = tx.all<object>(sql`
    with recursive gone(id, parent_id) as (
      select id, parent_id from layers
        where id = ${top}
        and not exists (select 1 from images where layer_id = layers.id)
        and not exists (select 1 from layers other where other.parent_id = layers.id)
      union all
      select layers.id, layers.parent_id from gone join layers on layers.id = gone.parent_id
        where not exists (select 1 from images where layer_id = layers.id)
        and not exists (select 1 from layers other where other.parent_id = layers.id and other.id <> gone.id)
    )
    select id, parent_id from gone limit ${limit}`);
  return rows.map((row) => {
    const [id, parentId] = Object.values(row) as [LayerId, LayerId | null];
    return { id, parentId };
  });
}
