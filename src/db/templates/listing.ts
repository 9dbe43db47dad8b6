import { and, asc, desc, eq, getTableColumns, isNull, notExists, notLike, sql } from "drizzle-orm";
import { alias } from "drizzle-orm/sqlite-core";
import type { AccountId } from "../../domain/ids.ts";
import type { Database } from "../database.ts";
import { type TagRow, tagColumns } from "../images/tags.ts";
import { tags } from "../schema.ts";
import type { ListedBuild } from "./builds.ts";
import { templateBuilds, templates } from "./schema.ts";
import type { TemplateRow } from "./templates.ts";

/** A template with its latest build, if it has any, and their number. */
export interface TemplateSummaryRow {
  readonly template: TemplateRow;
  readonly latest: ListedBuild | null;
  readonly buildsCount: number;
}

/** Those that are built by steps, by their names. */
export function listTemplates(db: Database, accountId: AccountId, limit: number): TemplateSummaryRow[] {
  const each = alias(templateBuilds, "each");
  const ofTemplate = eq(each.templateId, templates.id);
  const latestId = db.orm
    .select({ id: each.id })
    .from(each)
    .where(ofTemplate)
    .orderBy(desc(each.createdAt), desc(each.id))
    .limit(1);
  const count = db.orm.select({ count: sql<number>`count(*)` }).from(each).where(ofTemplate);
  const { log: _log, ...latest } = getTableColumns(templateBuilds);
  return db.orm
    .select({ template: getTableColumns(templates), latest, buildsCount: sql<number>`${count}` })
    .from(templates)
    .leftJoin(templateBuilds, eq(templateBuilds.id, sql`${latestId}`))
    .where(and(eq(templates.accountId, accountId), isNull(templates.sandboxId)))
    .orderBy(asc(templates.name))
    .limit(limit)
    .all();
}

/** Tags of images without a slash that belong to no template, by their names. */
export function listPlainTags(db: Database, accountId: AccountId, limit: number): TagRow[] {
  const name = sql`substr(${tags.name}, 1, instr(${tags.name} || ':', ':') - 1)`;
  const template = db.orm
    .select({ id: templates.id })
    .from(templates)
    .where(and(eq(templates.accountId, accountId), eq(templates.name, name)));
  return db.orm
    .select(tagColumns)
    .from(tags)
    .where(and(eq(tags.accountId, accountId), notLike(tags.name, "%/%"), notExists(template)))
    .orderBy(asc(tags.name))
    .limit(limit)
    .all();
}
