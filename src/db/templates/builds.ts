import { and, asc, count, desc, eq, getTableColumns, inArray, lt, ne, notExists } from "drizzle-orm";
import type { AccountId, ImageId } from "../../domain/ids.ts";
import { imageTag } from "../../domain/templates/names.ts";
import type { Database } from "../database.ts";
import type { Orm } from "../drizzle-client.ts";
import { moveTag } from "../images/tags.ts";
import { type BuildReason, type TemplateConfig, templateBuilds, templates, templateTags } from "./schema.ts";
import { moveTemplateTags } from "./templates.ts";

export type BuildRow = typeof templateBuilds.$inferSelect;
/** A build without its log, which can be megabytes. */
export type ListedBuild = Omit<BuildRow, "log">;

const { log: _log, ...listedColumns } = getTableColumns(templateBuilds);

export interface NewBuild {
  readonly id: string;
  readonly templateId: string;
  readonly tags: readonly string[];
  readonly config: TemplateConfig;
}

/** Inserts a build, which waits for its steps. */
export function insertBuild(db: Database, build: NewBuild, now: number): void {
  db.orm
    .insert(templateBuilds)
    .values({ ...build, status: "waiting", log: [], createdAt: now })
    .run();
}

/** A build of the template; null when there is none. */
export function findBuild(db: Database, templateId: string, id: string): ListedBuild | null {
  return (
    db.orm
      .select(listedColumns)
      .from(templateBuilds)
      .where(and(eq(templateBuilds.id, id), eq(templateBuilds.templateId, templateId)))
      .get() ?? null
  );
}

/** The stored log of a build; empty while it has not ended. */
export function buildLogOf(db: Database, id: string): readonly object[] {
  const row = db.orm.select({ log: templateBuilds.log }).from(templateBuilds).where(eq(templateBuilds.id, id)).get();
  return row?.log ?? [];
}

/** The newest first. */
export function buildsOf(db: Database, templateId: string, limit: number): ListedBuild[] {
  return db.orm
    .select(listedColumns)
    .from(templateBuilds)
    .where(eq(templateBuilds.templateId, templateId))
    .orderBy(desc(templateBuilds.createdAt), desc(templateBuilds.id))
    .limit(limit)
    .all();
}

export function countBuilds(db: Database, templateId: string): number {
  return (
    db.orm.select({ count: count() }).from(templateBuilds).where(eq(templateBuilds.templateId, templateId)).get()
      ?.count ?? 0
  );
}

/** Number of builds of all templates of an account. */
export function countAccountBuilds(db: Database, accountId: AccountId): number {
  const row = db.orm
    .select({ count: count() })
    .from(templateBuilds)
    .innerJoin(templates, eq(templates.id, templateBuilds.templateId))
    .where(eq(templates.accountId, accountId))
    .get();
  return row?.count ?? 0;
}

/** Takes a waiting build to `building`. Returns false when it does not wait. */
export function beginBuild(db: Database, id: string): boolean {
  const isWaiting = and(eq(templateBuilds.id, id), eq(templateBuilds.status, "waiting"));
  return db.orm.update(templateBuilds).set({ status: "building" }).where(isWaiting).run().changes === 1;
}

/** The end of a build: its image, or the reason why there is none. */
export type BuildEnd =
  | { readonly imageId: ImageId; readonly config: TemplateConfig }
  | { readonly reason: BuildReason };

/** The logs of so many builds of an account, the newest, are kept: one may take megabytes. */
const LOGGED_BUILDS_COUNT = 100;

/**
 * Ends a build that is `building`, and moves its tags to it. Returns false when it is not, because its template was deleted.
 * @throws ApiError `conflict` when the image has as many tags as it may have
 */
export function endBuild(
  db: Database,
  id: string,
  end: BuildEnd,
  { log, now }: { log: readonly object[]; now: number },
) {
  return db.transaction((tx) => {
    const status = "imageId" in end ? ("ready" as const) : ("error" as const);
    const row = tx
      .update(templateBuilds)
      .set({ ...end, status, log, finishedAt: now })
      .where(and(eq(templateBuilds.id, id), eq(templateBuilds.status, "building")))
      .returning()
      .get();
    if (row === undefined) return false;
    const template = tx.select().from(templates).where(eq(templates.id, row.templateId)).get();
    if (template !== undefined) forgetOlderLogs(tx, template.accountId);
    if (template === undefined || !("imageId" in end)) return true;
    moveTags(db, tx, { template, buildId: id, imageId: end.imageId, tags: row.tags, now });
    tx.update(templates).set({ updatedAt: now }).where(eq(templates.id, template.id)).run();
    return true;
  });
}

function forgetOlderLogs(orm: Orm, accountId: AccountId): void {
  const older = orm
    .select({ id: templateBuilds.id })
    .from(templateBuilds)
    .innerJoin(templates, eq(templates.id, templateBuilds.templateId))
    .where(eq(templates.accountId, accountId))
    .orderBy(desc(templateBuilds.createdAt), desc(templateBuilds.id))
    .limit(Number.MAX_SAFE_INTEGER)
    .offset(LOGGED_BUILDS_COUNT);
  orm
    .update(templateBuilds)
    .set({ log: [] })
    .where(and(inArray(templateBuilds.id, older), ne(templateBuilds.log, [])))
    .run();
}

interface TagsToMove {
  readonly template: Pick<typeof templates.$inferSelect, "id" | "accountId" | "name">;
  readonly buildId: string;
  readonly imageId: ImageId;
  readonly tags: readonly string[];
  readonly now: number;
}

/** Moves tags of a template to a build, and those of images to its image. */
function moveTags(db: Database, tx: Orm, { template, buildId, imageId, tags, now }: TagsToMove): void {
  const { id: templateId, accountId, name } = template;
  moveTemplateTags(db, { templateId, buildId, tags, now });
  for (const tag of tags) moveTag(tx, accountId, imageId, { name: imageTag(name, tag), change: "added", now });
}

/** Moves tags of a template to a build that is ready. @throws ApiError as `endBuild` does */
export function tagBuild(db: Database, tags: TagsToMove): void {
  db.transaction((tx) => moveTags(db, tx, tags));
}

/** Fails all builds that a former process left. Returns their ids. */
export function failInterruptedBuilds(db: Database, reason: BuildReason, now: number): string[] {
  return db.orm
    .update(templateBuilds)
    .set({ status: "error", reason, finishedAt: now })
    .where(eq(templateBuilds.status, "building"))
    .returning({ id: templateBuilds.id })
    .all()
    .map(({ id }) => id);
}

/** Empties at most `limit` logs of builds that ended before `beforeMs`. Returns their number. */
export function forgetLogsBefore(db: Database, beforeMs: number, limit: number): number {
  const hasLog = and(lt(templateBuilds.finishedAt, beforeMs), ne(templateBuilds.log, []));
  const rows = db.orm.select({ id: templateBuilds.id }).from(templateBuilds).where(hasLog).limit(limit).all();
  for (const { id } of rows) db.orm.update(templateBuilds).set({ log: [] }).where(eq(templateBuilds.id, id)).run();
  return rows.length;
}

/** A build that was deleted, with its image if it had one. */
export interface DeletedBuild {
  readonly id: string;
  readonly accountId: AccountId;
  readonly imageId: ImageId | null;
}

/** Deletes at most `limit` builds that were requested before `beforeMs`, do not run, and that no tag names. */
export function deleteBuildsBefore(db: Database, beforeMs: number, limit: number): DeletedBuild[] {
  return db.transaction((tx) => {
    const tag = tx
      .select({ tag: templateTags.tag })
      .from(templateTags)
      .where(eq(templateTags.buildId, templateBuilds.id));
    const rows = tx
      .select({ id: templateBuilds.id, imageId: templateBuilds.imageId, accountId: templates.accountId })
      .from(templateBuilds)
      .innerJoin(templates, eq(templates.id, templateBuilds.templateId))
      .where(
        and(
          inArray(templateBuilds.status, ["waiting", "ready", "error"]),
          lt(templateBuilds.createdAt, beforeMs),
          notExists(tag),
        ),
      )
      .orderBy(asc(templateBuilds.createdAt))
      .limit(limit)
      .all();
    for (const { id } of rows) tx.delete(templateBuilds).where(eq(templateBuilds.id, id)).run();
    return rows;
  });
}
