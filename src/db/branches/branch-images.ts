import { and, asc, desc, eq, lt, or, type SQL, sql } from "drizzle-orm";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import { type Database, isOneOf, statement } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { hasShownTag, imagesBeingRemoved, REMOVED } from "../images/images.ts";
import { history, images, tags } from "../schema.ts";
import { aboutCommand, aboutText, leadingTexts } from "./about.ts";

/** The beginning of a stored command that is read, in `characters` of JSON: enough for its line, and for a path of a shell. */
const COMMAND_CHARACTERS_MAX = 600;

/** An image as a node of the branches of its account. Times are `milliseconds` since the epoch, sizes are in `bytes`. */
export interface BranchImage {
  readonly id: ImageId;
  /** the image that it was made from, which may be deleted; null for an import */
  readonly madeFromId: ImageId | null;
  /** true: that image exists */
  readonly hasParent: boolean;
  readonly tag: string | null;
  readonly createdAt: number;
  readonly sizeBytes: number;
  readonly operationId: OperationId;
  /** one line about its origin; null when that is not stored */
  readonly about: string | null;
  /** true: an import made it, so it has neither a parent nor a command */
  readonly isImport: boolean;
  readonly exitCode: number | null;
  readonly timedOut: boolean;
  readonly network: boolean;
}

/** A place in the order of images: by the time at which they were made, then by id. */
export interface ImagePlace {
  readonly createdAt: number;
  readonly id: ImageId;
}

const columns = {
  id: images.id,
  existingParentId: images.parentId,
  madeFromId: history.parentId,
  tag: tags.name,
  createdAt: images.createdAt,
  sizeBytes: images.sizeBytes,
  operationId: history.operationId,
  command: sql<string | null>`substr(${history.command}, 1, ${sql.raw(String(COMMAND_CHARACTERS_MAX))})`,
  source: history.source,
  exitCode: history.exitCode,
  timedOut: history.timedOut,
  network: history.network,
};

function select(orm: Orm) {
  return orm
    .select(columns)
    .from(images)
    .innerJoin(history, eq(history.imageId, images.id))
    .leftJoin(tags, hasShownTag);
}

type Row = ReturnType<ReturnType<typeof select>["all"]>[number];

function branchImages(db: Database, rows: readonly Row[]): BranchImage[] {
  const removing = imagesBeingRemoved(db);
  return rows.map((row) => branchImage(row, removing));
}

function branchImage({ existingParentId, command, source, ...row }: Row, removing: ReadonlySet<ImageId>): BranchImage {
  const about = command !== null ? aboutCommand(leadingTexts(command)) : source === null ? null : aboutText(source);
  const isImport = command === null && row.madeFromId === null;
  const hasParent = existingParentId !== null && !removing.has(existingParentId);
  return { ...row, hasParent, about: about === "" ? null : about, isImport };
}

/** The place of an image; null when the account has no such image. */
export function placeOf(db: Database, accountId: AccountId, id: ImageId): ImagePlace | null {
  const { createdAt } = images;
  const place = db.orm
    .select({ createdAt, id: images.id })
    .from(images)
    .where(and(eq(images.id, id), eq(images.accountId, accountId)))
    .get();
  return place ?? null;
}

/** The place of the image that is `count` images older than `from`; null when there are fewer. Reads only an index. */
export function placeBefore(
  db: Database,
  accountId: AccountId,
  from: ImagePlace | null,
  count: number,
): ImagePlace | null {
  const { createdAt, id } = images;
  const place = db.orm
    .select({ createdAt, id })
    .from(images)
    .where(and(eq(images.accountId, accountId), from === null ? undefined : isBefore(from)))
    .orderBy(desc(createdAt), desc(id))
    .limit(1)
    .offset(count - 1)
    .get();
  return place ?? null;
}

/** A place after all images. */
const END: ImagePlace = { createdAt: Number.MAX_SAFE_INTEGER, id: "" as ImageId };

const at = (column: string) => sql.placeholder(column);
const place = sql`(${images.createdAt}, ${images.id})`;
const imagesBetween = statement((orm) =>
  select(orm)
    .where(
      and(
        eq(images.accountId, at("accountId")),
        sql`${place} >= (${at("fromAt")}, ${at("fromId")})`,
        sql`${place} < (${at("endAt")}, ${at("endId")})`,
      ),
    )
    .orderBy(asc(images.createdAt), asc(images.id))
    .limit(at("limit"))
    .prepare(),
);

/** Images from one place up to another one, the oldest first. */
export function branchImagesFrom(
  db: Database,
  accountId: AccountId,
  from: ImagePlace,
  before: ImagePlace | null,
  limit: number,
): BranchImage[] {
  const end = before ?? END;
  const bounds = { fromAt: from.createdAt, fromId: from.id, endAt: end.createdAt, endId: end.id };
  return branchImages(db, imagesBetween(db).all({ accountId, ...bounds, limit }));
}

/** The place immediately after an image: no id lies between. */
export function placeBehind({ createdAt, id }: ImagePlace): ImagePlace {
  return { createdAt, id: `${id}0` as ImageId };
}

/** Those of `ids` that the account has, the oldest first. */
export function branchImagesOf(db: Database, accountId: AccountId, ids: readonly ImageId[]): BranchImage[] {
  const rows = select(db.orm)
    .where(and(isOneOf(images.id, ids), eq(images.accountId, accountId)))
    .all();
  rows.sort((a, b) => a.createdAt - b.createdAt || (a.id < b.id ? -1 : 1));
  return branchImages(db, rows);
}

function isBefore({ createdAt, id }: ImagePlace): SQL | undefined {
  return and(
    sql`${images.createdAt} <= ${createdAt}`,
    or(lt(images.createdAt, createdAt), and(eq(images.createdAt, createdAt), lt(images.id, id))),
  );
}

/** The end of a walk. */
export interface WalkedUp {
  /** the image at which it ended */
  readonly id: ImageId;
  readonly exists: boolean;
  /** the parent of that image; null: none */
  readonly madeFromId: ImageId | null;
  /** steps to it */
  readonly stepsCount: number;
}

/** Walks from an image towards its import until an image exists, at most `stepsMax` steps. Null when there is no such step. */
export function walkUp(db: Database, id: ImageId, stepsMax: number): WalkedUp | null {
  const isThere = sql`exists (select 1 from images where images.id = up.id and images.account_id <> ${REMOVED})`;
  const rows = db.orm.all<[ImageId, number, ImageId | null, number]>(sql`
    with recursive up(id, steps) as (
      select ${id}, 0
      union all
      select h.parent_id, up.steps + 1 from up join history h on h.image_id = up.id
        where h.parent_id is not null and up.steps < ${stepsMax}
        and not ${isThere}
    )
    select up.id, up.steps, h.parent_id, ${isThere}
      from up join history h on h.image_id = up.id order by up.steps desc limit 1`);
  const [row] = rows;
  if (row === undefined) return null;
  const [lastId, stepsCount, madeFromId, exists] = Object.values(row) as unknown as [
    ImageId,
    number,
    ImageId | null,
    number,
  ];
  return { id: lastId, exists: exists === 1, madeFromId, stepsCount };
}
