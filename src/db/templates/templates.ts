import { and, asc, count, desc, eq, sql } from "drizzle-orm";
import type { AccountId } from "../../domain/ids.ts";
import { newTemplateId } from "../../domain/templates/names.ts";
import { ensureAccount } from "../accounts.ts";
import type { Database } from "../database.ts";
import { templateBuilds, templates, templateTags } from "./schema.ts";

export type TemplateRow = typeof templates.$inferSelect;
/** A tag of a template, and the build that it names. */
export type TemplateTagRow = Omit<typeof templateTags.$inferSelect, "templateId">;

/** A template of the account by its id or its name; null when there is none. */
export function findTemplate(
  db: Database,
  accountId: AccountId,
  by: { readonly id: string } | { readonly name: string },
): TemplateRow | null {
  const isOne = "id" in by ? eq(templates.id, by.id) : eq(templates.name, by.name);
  return (
    db.orm
      .select()
      .from(templates)
      .where(and(eq(templates.accountId, accountId), isOne))
      .get() ?? null
  );
}

/** The template of that name, which is made when there is none. */
export function ensureTemplate(db: Database, accountId: AccountId, name: string, now: number): TemplateRow {
  return db.transaction(() => ensureTemplateIn(db, accountId, name, now));
}

/** `ensureTemplate` inside a transaction. */
export function ensureTemplateIn(db: Database, accountId: AccountId, name: string, now: number): TemplateRow {
  ensureAccount(db, accountId, now);
  const row = { id: newTemplateId(), accountId, name, public: false, createdAt: now, updatedAt: now };
  db.orm.insert(templates).values(row).onConflictDoNothing().run();
  const template = findTemplate(db, accountId, { name });
  if (template === null) throw new Error("a template without a row");
  return template;
}

/** Number of all templates of an account, also of those that are snapshots of sandboxes. */
export function countTemplates(db: Database, accountId: AccountId): number {
  return db.orm.select({ count: count() }).from(templates).where(eq(templates.accountId, accountId)).get()?.count ?? 0;
}

export function setTemplatePublic(db: Database, id: string, isPublic: boolean, now: number): void {
  db.orm.update(templates).set({ public: isPublic, updatedAt: now }).where(eq(templates.id, id)).run();
}

/** Counts a sandbox that began with the template, if it exists. */
export function countSpawn(db: Database, id: string, now: number): void {
  const spawnCount = sql`${templates.spawnCount} + 1`;
  db.orm.update(templates).set({ spawnCount, lastSpawnedAt: now }).where(eq(templates.id, id)).run();
}

/** Deletes a template with its builds and tags. Images and their tags stay. */
export function deleteTemplate(db: Database, id: string): void {
  db.orm.delete(templates).where(eq(templates.id, id)).run();
}

/** The tags of a template, the newest first. */
export function templateTagsOf(db: Database, templateId: string): TemplateTagRow[] {
  const { tag, buildId, createdAt } = templateTags;
  return db.orm
    .select({ tag, buildId, createdAt })
    .from(templateTags)
    .where(eq(templateTags.templateId, templateId))
    .orderBy(desc(createdAt), asc(tag))
    .all();
}

/** Moves tags of a template to a build. */
export function moveTemplateTags(
  db: Database,
  { templateId, buildId, tags, now }: { templateId: string; buildId: string; tags: readonly string[]; now: number },
): void {
  for (const tag of tags) {
    db.orm
      .insert(templateTags)
      .values({ templateId, tag, buildId, createdAt: now })
      .onConflictDoUpdate({
        target: [templateTags.templateId, templateTags.tag],
        set: { buildId, createdAt: now },
      })
      .run();
  }
}

/** Removes a tag of a template. Returns the build that had it; null when there was none. */
export function removeTemplateTag(db: Database, templateId: string, tag: string): string | null {
  const row = db.orm
    .delete(templateTags)
    .where(and(eq(templateTags.templateId, templateId), eq(templateTags.tag, tag)))
    .returning({ buildId: templateTags.buildId })
    .get();
  return row?.buildId ?? null;
}

/** The build that a tag of a template names; null when there is none. */
export function taggedBuild(db: Database, templateId: string, tag: string): typeof templateBuilds.$inferSelect | null {
  const row = db.orm
    .select({ build: templateBuilds })
    .from(templateTags)
    .innerJoin(templateBuilds, eq(templateBuilds.id, templateTags.buildId))
    .where(and(eq(templateTags.templateId, templateId), eq(templateTags.tag, tag)))
    .get();
  return row?.build ?? null;
}
