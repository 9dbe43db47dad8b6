import { and, asc, eq, getTableColumns, type SQL, sql } from "drizzle-orm";
import type { AccountId, ImageId, LayerId, OperationId } from "../../domain/ids.ts";
import { type Database, isOneOf, placeholders, statement } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { type Asker, LARGE_OFFSET_MIN } from "../scans/scans.ts";
import { history, images, tags } from "../schema.ts";
import { imagesBeingRemoved, isShown } from "./images.ts";

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

const insertStep = statement((orm) =>
  orm
    .insert(history)
    .values({ ...placeholders(history), command: sql`${sql.placeholder("command")}` })
    .prepare(),
);

/** Inserts the step of an image that is being published. */
export function insertHistory(
  db: Database,
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
  insertStep(db).run({
    imageId: id,
    parentId,
    operationId,
    // The encoder of the column would make a text of null.
    command: command === null ? null : JSON.stringify(command),
    commandCut: command !== null && command.length < (origin.command?.length ?? 0),
    exitCode: origin.exitCode ?? null,
    timedOut: origin.timedOut ?? false,
    source: origin.source ?? null,
    digest: digest ?? null,
    sizeBytes,
    startedAt,
    createdAt: now,
    network: origin.network ?? false,
  });
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
  return stepsOf(db, [id])[0] ?? null;
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

/** A step of a lineage, reduced to what the search for its layers needs. */
export interface LineageState extends Pick<HistoryRow, "imageId" | "parentId" | "sizeBytes" | "createdAt"> {
  /** top layer of the image; null when the account's image is deleted */
  readonly layerId: LayerId | null;
}

/** At most `limit` steps of a lineage, from the step of the image `from` down to the base. */
export function lineageStates(db: Database, accountId: AccountId, from: ImageId, limit: number): LineageState[] {
  const rows = db.orm.all<object>(sql`
    with recursive walk(id, parent_id, size_bytes, created_at, depth) as (
      select image_id, parent_id, size_bytes, created_at, 0 from history where image_id = ${from}
      union all
      select h.image_id, h.parent_id, h.size_bytes, h.created_at, walk.depth + 1
        from walk join history h on h.image_id = walk.parent_id
    )
    select page.id, page.parent_id, page.size_bytes, page.created_at, images.layer_id
      from (select * from walk limit ${limit}) as page
      left join images on images.id = page.id and images.account_id = ${accountId}
      order by page.depth`);
  return rows.map((row) => {
    const [imageId, parentId, sizeBytes, createdAt, layerId] = Object.values(row) as [
      ImageId,
      ImageId | null,
      number,
      number,
      LayerId | null,
    ];
    return { imageId, parentId, sizeBytes, createdAt, layerId };
  });
}

/** The steps of images of one lineage, in the order of `ids`. */
export function lineageSteps(db: Database, ids: readonly ImageId[]): HistoryRow[] {
  return stepsOf(db, ids);
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
  const removing = imagesBeingRemoved(db);
  const byId = new Map(rows.map((row) => [row.imageId, { ...row, exists: row.exists && !removing.has(row.imageId) }]));
  return ids.flatMap((id) => byId.get(id) ?? []);
}

/** No image and no other step needs this one. */
const isNeedless = (child: SQL) => sql`
  not exists (select 1 from images where id = history.image_id)
  and not exists (select 1 from history later where later.parent_id = history.image_id and later.image_id <> ${child})`;

/**
 * Deletes the nearest ancestors of a deleted image, at most `limit` of them, that only its lineage needs. The lineage then
 * continues above them. Returns their number; less than `limit`: the next ancestor is needed, or there is none.
 */
export function pruneAncestors(tx: Orm, deleted: ImageId, limit: number): number {
  if (hasSteps(tx, deleted)) return 0;
  const rows = tx.all<object>(sql`
    with recursive gone(id, parent_id) as (
      select history.image_id, history.parent_id
        from history step join history on history.image_id = step.parent_id
        where step.image_id = ${deleted} and ${isNeedless(sql`step.image_id`)}
      union all
      select history.image_id, history.parent_id from gone join history on history.image_id = gone.parent_id
        where ${isNeedless(sql`gone.id`)}
    )
    select id, parent_id from gone limit ${limit}`);
  const gone = rows.map((row) => Object.values(row) as [ImageId, ImageId | null]);
  const last = gone.at(-1);
  if (last === undefined) return 0;
  const [, parentId] = last;
  tx.update(history).set({ parentId }).where(eq(history.imageId, deleted)).run();
  const ids = gone.map(([id]) => id);
  tx.delete(history).where(isOneOf(history.imageId, ids)).run();
  return gone.length;
}

/** Deletes the step of a deleted image if no step was made from it. */
export function deleteStep(tx: Orm, deleted: ImageId): void {
  if (!hasSteps(tx, deleted)) tx.delete(history).where(eq(history.imageId, deleted)).run();
}

/** True when a step was made from the image. */
function hasSteps(tx: Orm, id: ImageId): boolean {
  const { imageId, parentId } = history;
  return tx.select({ imageId }).from(history).where(eq(parentId, id)).limit(1).get() !== undefined;
}
