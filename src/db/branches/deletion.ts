import { and, asc, eq, isNull, sql } from "drizzle-orm";
import type { Database } from "../database.ts";
import type { ImageRow } from "../images/images.ts";
import { hasSandbox } from "../sandboxes/uses.ts";
import { images, operations, tags } from "../schema.ts";

/** The effect of deleting an image. */
export interface Deletion {
  /** disk space of the layers that no other image of the account needs, and of their merged layers, in `bytes` */
  readonly sizeBytes: number;
  readonly layerCount: number;
  /** images that were made directly from it */
  readonly childCount: number;
  readonly tags: readonly string[];
  /** a waiting or running operation, or a sandbox, uses it, so that it cannot be deleted */
  readonly isInUse: boolean;
}

/**
 * The effect of deleting an image for its account. A base that other accounts share counts as if only this account had it, so
 * that it reveals nothing about others. Chains can be long, so they are walked in a thread.
 * @throws as `Scans.all` does
 */
export async function previewDeletion(
  db: Database,
  { id, accountId, layerId }: Pick<ImageRow, "id" | "accountId" | "layerId">,
  signal: AbortSignal,
): Promise<Deletion> {
  const asker = { accountId, signal };
  const gone = await db.scans.all({ sql: GONE, params: [layerId, id] }, asker);
  const [[count, bytes, mergedBytes, belowId, belowBytes] = []] = gone;
  const needed =
    belowId === null ? [belowId] : await db.scans.all({ sql: NEEDED, params: [accountId, id, belowId] }, asker);
  const isBaseGone = needed.length === 0;
  const user = db.orm
    .select({ id: operations.id })
    .from(operations)
    .where(and(eq(operations.imageId, id), isNull(operations.finishedAt)))
    .limit(1)
    .get();
  const children = db.orm
    .select({ count: sql<number>`count(*)` })
    .from(images)
    .where(and(eq(images.parentId, id), eq(images.accountId, accountId)))
    .get();
  const names = db.orm.select({ name: tags.name }).from(tags).where(eq(tags.imageId, id)).orderBy(asc(tags.name)).all();
  return {
    sizeBytes: Number(bytes) + Number(mergedBytes) + (isBaseGone ? Number(belowBytes) : 0),
    layerCount: Number(count) + (isBaseGone ? 1 : 0),
    childCount: children?.count ?? 0,
    tags: names.map(({ name }) => name),
    isInUse: user !== undefined || hasSandbox(db.orm, id),
  };
}

/**
 * The layers from the top of an image (?1: the layer, ?2: the image) down that nothing else refers to: their number and size,
 * the size of their merged layers, and, if it is a base, the layer below them with its size.
 */
const GONE = `
  with recursive
    gone(id, parent_id, size) as (
      select id, parent_id, size_bytes from layers where id = ?1
        and not exists (select 1 from images where layer_id = layers.id and images.id <> ?2)
        and not exists (select 1 from layers other where other.parent_id = layers.id)
      union all
      select layers.id, layers.parent_id, layers.size_bytes from gone join layers on layers.id = gone.parent_id
        where not exists (select 1 from images where layer_id = layers.id and images.id <> ?2)
        and not exists (select 1 from layers other where other.parent_id = layers.id and other.id <> gone.id)
    ),
    below(id, size) as (
      select id, size_bytes from layers
        where id = coalesce((select parent_id from gone where parent_id not in (select id from gone)), ?1)
        and base_key is not null and id not in (select id from gone)
    )
  select (select count(*) from gone), (select coalesce(sum(size), 0) from gone),
    (select coalesce(sum(size_bytes), 0) from merged_layers
      where top_id in (select id from gone) or below_id in (select id from gone)),
    (select id from below), (select size from below)`;

/** A row if an image of the account ?1 other than ?2 needs the layer ?3. */
const NEEDED = `
  with recursive needed(id) as (
    select layer_id from images where account_id = ?1 and id <> ?2
    union
    select layers.parent_id from needed join layers on layers.id = needed.id where layers.parent_id is not null
  )
  select 1 from needed where id = ?3 limit 1`;
