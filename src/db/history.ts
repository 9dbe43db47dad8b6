import { asc, eq, getTableColumns, sql } from "drizzle-orm";
import type { ImageId, OperationId } from "../domain/ids.ts";
import type { Database, Orm } from "./database.ts";
import { history, images, tags } from "./schema.ts";

/** Longest command that is kept, all its arguments together, in `bytes`. */
export const HISTORY_COMMAND_BYTES_MAX = 65_536;

/** How an image came to be: by a command, or from a registry. Neither env nor stdin are kept. */
export interface Making {
  readonly command?: readonly string[];
  readonly exitCode?: number;
  readonly timedOut?: boolean;
  readonly source?: string;
}

/** A step of a lineage. The image itself may be deleted. */
export type HistoryRow = typeof history.$inferSelect & { readonly exists: boolean; readonly tag: string | null };

/** Writes the step of an image that is being published. */
export function insertHistory(
  tx: Orm,
  step: {
    readonly image: {
      readonly id: ImageId;
      readonly parentId: ImageId | null;
      readonly digest?: string;
      readonly sizeBytes: number;
      readonly making?: Making;
    };
    readonly operationId: OperationId;
    readonly startedAt: number | null;
    readonly now: number;
  },
): void {
  const { image, operationId, startedAt, now } = step;
  const { id, parentId, digest, sizeBytes, making = {} } = image;
  const command = making.command === undefined ? null : cutCommand(making.command);
  tx.insert(history)
    .values({
      imageId: id,
      parentId,
      operationId,
      command,
      commandCut: command !== null && command.length < (making.command?.length ?? 0),
      exitCode: making.exitCode ?? null,
      timedOut: making.timedOut ?? false,
      source: making.source ?? null,
      digest: digest ?? null,
      sizeBytes,
      startedAt,
      createdAt: now,
    })
    .run();
}

/** The first arguments that fit; an argument is kept whole or not at all. */
function cutCommand(command: readonly string[]): readonly string[] {
  let totalBytes = 0;
  const end = command.findIndex((argument) => {
    totalBytes += Buffer.byteLength(argument);
    return totalBytes > HISTORY_COMMAND_BYTES_MAX;
  });
  return end === -1 ? command : command.slice(0, end);
}

const stepColumns = {
  ...getTableColumns(history),
  exists: sql<boolean>`${images.id} is not null`.mapWith(Boolean),
  tag: tags.name,
};

export interface Page {
  readonly limit: number;
  readonly offset: number;
}

export function getHistory(db: Database, id: ImageId): HistoryRow | null {
  const row = selectSteps(db.orm).where(eq(history.imageId, id)).get();
  return row ?? null;
}

function selectSteps(orm: Orm) {
  return orm
    .select(stepColumns)
    .from(history)
    .leftJoin(images, eq(images.id, history.imageId))
    .leftJoin(tags, eq(tags.imageId, history.imageId));
}

/** The image and what it was made from, the image first and its base last, deleted ones included. */
export function lineage(db: Database, id: ImageId, page: Page): HistoryRow[] {
  const walk = sql`(
    with recursive walk(id, depth) as (
      select ${id}, 0
      union all
      select h.parent_id, walk.depth + 1 from walk join history h on h.image_id = walk.id where h.parent_id is not null
    )
    select id as step_id, depth from walk limit ${page.limit} offset ${page.offset}
  )`;
  return db.orm
    .select(stepColumns)
    .from(walk)
    .innerJoin(history, eq(history.imageId, sql`step_id`))
    .leftJoin(images, eq(images.id, history.imageId))
    .leftJoin(tags, eq(tags.imageId, history.imageId))
    .orderBy(sql`depth`)
    .all();
}

/** What was made from the image, the oldest first: by one run, or with `recursive` by any number. */
export function descendants(db: Database, id: ImageId, options: Page & { readonly recursive: boolean }): HistoryRow[] {
  const found = options.recursive
    ? sql`${history.imageId} in (
        with recursive walk(id) as (
          select image_id from history where parent_id = ${id}
          union all
          select h.image_id from walk join history h on h.parent_id = walk.id
        )
        select id from walk
      )`
    : eq(history.parentId, id);
  return selectSteps(db.orm)
    .where(found)
    .orderBy(asc(history.createdAt), asc(history.imageId))
    .limit(options.limit)
    .offset(options.offset)
    .all();
}

/** Forgets the step of a deleted image when nothing that exists was made from it, and then those above it likewise. */
export function pruneHistory(tx: Orm, deleted: ImageId): void {
  for (let id: ImageId | null = deleted; id !== null; ) {
    const child = tx.select({ id: history.imageId }).from(history).where(eq(history.parentId, id)).limit(1).get();
    const image = tx.select({ id: images.id }).from(images).where(eq(images.id, id)).get();
    if (child !== undefined || image !== undefined) return;
    const removed: { parentId: ImageId | null } | undefined = tx
      .delete(history)
      .where(eq(history.imageId, id))
      .returning({ parentId: history.parentId })
      .get();
    id = removed?.parentId ?? null;
  }
}
