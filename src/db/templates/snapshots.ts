import { and, desc, eq, isNotNull, lt, or } from "drizzle-orm";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, ImageId, SandboxId } from "../../domain/ids.ts";
import { imageTag } from "../../domain/templates/names.ts";
import type { Database } from "../database.ts";
import { moveTag } from "../images/tags.ts";
import { countBuilds } from "./builds.ts";
import { type TemplateConfig, templateBuilds, templates, templateTags } from "./schema.ts";
import { ensureTemplateIn, moveTemplateTags } from "./templates.ts";

/** A template that has the files of a sandbox, under one of its tags. */
export interface SnapshotRow {
  readonly templateId: string;
  readonly name: string;
  readonly tag: string;
  /** when the tag was set, in `milliseconds` since the epoch */
  readonly createdAt: number;
}

export interface NewSnapshot {
  readonly accountId: AccountId;
  readonly name: string;
  readonly tag: string;
  readonly sandboxId: SandboxId;
  readonly imageId: ImageId;
  readonly config: TemplateConfig;
}

/**
 * Makes a build of an image that exists, and its template if there is none, and moves the tag to it.
 * @throws ApiError `conflict` when a template that is built by steps has the name, or the image as many tags as it may have
 */
export function insertSnapshot(db: Database, snapshot: NewSnapshot, now: number): SnapshotRow {
  const { accountId, name, tag, sandboxId, imageId, config } = snapshot;
  return db.transaction((tx) => {
    const { id: templateId, sandboxId: before } = ensureTemplateIn(db, accountId, name, now);
    if (before === null && countBuilds(db, templateId) > 0)
      throw new ApiError("conflict", `'${name}' is the name of a template`, { name });
    tx.update(templates).set({ sandboxId, updatedAt: now }).where(eq(templates.id, templateId)).run();
    const id = crypto.randomUUID();
    const build = { id, templateId, status: "ready" as const, tags: [tag], imageId, config, log: [] };
    tx.insert(templateBuilds)
      .values({ ...build, createdAt: now, finishedAt: now })
      .run();
    moveTemplateTags(db, { templateId, buildId: id, tags: [tag], now });
    moveTag(tx, accountId, imageId, { name: imageTag(name, tag), change: "added", now });
    return { templateId, name, tag, createdAt: now };
  });
}

export interface SnapshotFilter {
  /** absent: of any sandbox */
  readonly sandboxId?: SandboxId | undefined;
  readonly name?: string | undefined;
  /** the last one of the page before */
  readonly after?: Pick<SnapshotRow, "createdAt" | "templateId" | "tag"> | undefined;
  readonly limit: number;
}

/** The snapshots of an account, the newest first. */
export function listSnapshots(
  db: Database,
  accountId: AccountId,
  { sandboxId, name, after, limit }: SnapshotFilter,
): SnapshotRow[] {
  const { createdAt, templateId, tag } = templateTags;
  const isAfter =
    after === undefined
      ? undefined
      : or(
          lt(createdAt, after.createdAt),
          and(eq(createdAt, after.createdAt), lt(templateId, after.templateId)),
          and(eq(createdAt, after.createdAt), eq(templateId, after.templateId), lt(tag, after.tag)),
        );
  return db.orm
    .select({ templateId, name: templates.name, tag, createdAt })
    .from(templates)
    .innerJoin(templateTags, eq(templateTags.templateId, templates.id))
    .where(
      and(
        eq(templates.accountId, accountId),
        sandboxId === undefined ? isNotNull(templates.sandboxId) : eq(templates.sandboxId, sandboxId),
        name === undefined ? undefined : eq(templates.name, name),
        isAfter,
      ),
    )
    .orderBy(desc(createdAt), desc(templateId), desc(tag))
    .limit(limit)
    .all();
}
