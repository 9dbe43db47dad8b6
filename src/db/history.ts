import { and, asc, eq, getTableColumns, type SQL, sql } from "drizzle-orm";
import type { ImageId, OperationId } from "../domain/ids.ts";
import { type Database, isOneOf, type Orm } from "./database.ts";
import { isShown } from "./images.ts";
import { type Asker, LARGE_OFFSET_MIN } from "./scans.ts";
import { history, images, tags } from "./schema.ts";

/** Longest command that is stored, all arguments together, in `bytes`. */
export const HISTORY_COMMAND_BYTES_MAX = 65_536;

/** Number of images in a tree above which the tree is walked in the scan thread. */
const WALK_COUNT_MAX = 1000;

/** How an image was made: by a command, or by an import of `source`. Environment and stdin are not stored. */
export interface ImageOrigin {
  readonly command?: readonly string[];
  readonly exitCode?: number;
  readonly timedOut?: boolean;
  readonly source?: string;
  /** true when the command had a network */
  readonly network?: boolean;
}

/** A step of a lineage. Its image may be deleted (`exists`). */
export type HistoryRow = typeof history.$inferSelect & { readonly exists: boolean; readonly tag: string | null };

/** Inserts the step of an image that is being published. */
export function insertHistory(
  tx: Orm,
  step: {
    readonly image: {
      readonly id: ImageId;
      readonly parentId: ImageId | null;
      readonly digest?: string;
      readonly sizeBytes: number;
      readonly origin?: ImageOrigin;
    };
    readonly operationId: OperationId;
    readonly startedAt: number | null;
    readonly now: number;
  },
): void {
  const { image, operationId, startedAt, now } = step;
  const { id, parentId, digest, sizeBytes, origin = {} } = image;
  const command = origin.command === undefined ? null : cutCommand(origin.command);
  tx.insert(history)
    .values({
      imageId: id,
      parentId,
      operationId,
      command,
      commandCut: command !== null && command.length < (origin.command?.length ?? 0),
      exitCode: origin.exitCode ?? null,
      timedOut: origin.timedOut ?? false,
      source: origin.source ?? null,
      digest: digest ?? null,
      sizeBytes,
      startedAt,
      createdAt: now,
      network: origin.network ?? false,
    })
    .run();
}

/** The first arguments that fit. Arguments are never cut in the middle. */
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
    .leftJoin(tags, and(eq(tags.imageId, history.imageId), isShown));
}

/** The lineage of an image, from the image down to its base, including deleted images. */
export async function lineage(db: Database, id: ImageId, page: Page, asker: Asker): Promise<HistoryRow[]> {
  const query = db.orm.select({ id: sql<ImageId>`id` }).from(
    sql`(
        with recursive walk(id) as (
          select ${id}
          union all
          select h.parent_id from walk join history h on h.image_id = walk.id where h.parent_id is not null
        )
        select id from walk limit ${page.limit} offset ${page.offset}
      ) as page`,
  );
  return stepsOf(db, await idsOf(db, query, page.offset >= LARGE_OFFSET_MIN ? asker : null));
}

/** Images made from this one, oldest first: by one run, or by any number of runs when `recursive`. */
export async function descendants(
  db: Database,
  id: ImageId,
  options: Page & { readonly recursive: boolean },
  asker: Asker,
): Promise<HistoryRow[]> {
  const walk = sql`
    with recursive walk(id) as (
      select image_id from history where parent_id = ${id}
      union all
      select h.image_id from walk join history h on h.parent_id = walk.id
    )
    select id from walk`;
  const query = db.orm
    .select({ id: history.imageId })
    .from(history)
    .where(options.recursive ? sql`${history.imageId} in (${walk})` : eq(history.parentId, id))
    .orderBy(asc(history.createdAt), asc(history.imageId))
    .limit(options.limit)
    .offset(options.offset);
  const isLong = options.offset >= LARGE_OFFSET_MIN || (options.recursive && isLongerThan(db, walk, WALK_COUNT_MAX));
  return stepsOf(db, await idsOf(db, query, isLong ? asker : null));
}

function isLongerThan(db: Database, walk: SQL, countMax: number): boolean {
  const row = db.orm.get<{ count: number }>(sql`select count(*) as count from (${walk} limit ${countMax + 1}) as page`);
  return Number(Object.values(row)[0]) > countMax;
}

interface IdQuery {
  toSQL(): { readonly sql: string; readonly params: readonly unknown[] };
  all(): { readonly id: ImageId }[];
}

/** @param asker of a long query, which runs in the scan thread; null: the query is short */
async function idsOf(db: Database, query: IdQuery, asker: Asker | null): Promise<ImageId[]> {
  if (asker === null) return query.all().map(({ id }) => id);
  return await db.scans.ids<ImageId>(query, asker);
}

/** The steps of a page, in the order of `ids`. Steps that were deleted meanwhile are left out. */
function stepsOf(db: Database, ids: readonly ImageId[]): HistoryRow[] {
  const rows = selectSteps(db.orm).where(isOneOf(history.imageId, ids)).all();
  const byId = new Map(rows.map((row) => [row.imageId, row]));
  return ids.flatMap((id) => byId.get(id) ?? []);
}

/**
 * Deletes the step of a deleted image if no existing step was made from it, and then its ancestors under the same
 * condition.
 */
export function pruneHistory(tx: Orm, deleted: ImageId): void {
  tx.run(sql`
    delete from history where image_id in (
      with recursive gone(id, parent_id) as (
        select image_id, parent_id from history
          where image_id = ${deleted}
          and not exists (select 1 from images where id = history.image_id)
          and not exists (select 1 from history made where made.parent_id = history.image_id)
        union all
        select history.image_id, history.parent_id from gone join history on history.image_id = gone.parent_id
          where not exists (select 1 from images where id = history.image_id)
          and not exists (
            select 1 from history made where made.parent_id = history.image_id and made.image_id <> gone.id
          )
      )
      select id from gone
    )`);
}
