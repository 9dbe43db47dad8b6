import { findRecord } from "../../db/e2b/records.ts";
import { requireSandbox } from "../../db/sandboxes/rows.ts";
import { findBuild } from "../../db/templates/builds.ts";
import { insertSnapshot, listSnapshots, type SnapshotFilter, type SnapshotRow } from "../../db/templates/snapshots.ts";
import { countTemplates, findTemplate, type TemplateRow, templateTagsOf } from "../../db/templates/templates.ts";
import { ApiError } from "../../domain/errors.ts";
import type { SandboxId } from "../../domain/ids.ts";
import { newTemplateId, parseTemplateName, requireTemplateName, TAG_DEFAULT } from "../../domain/templates/names.ts";
import { type Changed, change } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { NO_CONFIG, noSuchTemplate, type TemplateConfig } from "./resolve.ts";

/** A template that has the files of a sandbox, under one of its tags. */
export type Snapshot = SnapshotRow;

export interface SnapshotInput {
  readonly sandbox: SandboxId;
  /** `name` or `name:tag`; absent: it gets a name of its own */
  readonly name?: string | undefined;
  /** abandons the wait for the files */
  readonly signal: AbortSignal;
}

export interface ListSnapshots extends Pick<SnapshotFilter, "sandboxId" | "name" | "limit"> {
  /** `next` of the page before */
  readonly cursor?: string | undefined;
}

export interface SnapshotPage {
  readonly snapshots: readonly Snapshot[];
  /** cursor of the next page; null on the last one */
  readonly next: string | null;
}

/** As `TemplateUseCases.snapshot`. */
export async function snapshot(
  parts: ServiceParts,
  principal: Principal,
  { sandbox: id, name: text, signal }: SnapshotInput,
): Promise<Changed<Snapshot>> {
  const { db, sandboxes, changes, clock } = parts;
  const { accountId } = principal;
  const { name, tag } =
    text === undefined ? { name: `snapshot-${newTemplateId()}`, tag: null } : requireTemplateName(text, accountId);
  requireRoom(parts, principal, name);
  return await change(parts, principal, { noun: "template", verb: "snapshot", id }, async () => {
    const imageId = await sandboxes.presentImage(accountId, id, signal);
    const config = configOf(parts, principal, id);
    const values = { accountId, name, tag: tag ?? TAG_DEFAULT, sandboxId: id, imageId, config };
    const row = insertSnapshot(db, values, clock());
    changes.report(accountId, { type: "image", id: imageId });
    return row;
  });
}

/** @throws ApiError `too_many_requests` when the account has as many templates as it may have */
function requireRoom({ db, accounts }: ServiceParts, { accountId }: Principal, name: string): void {
  const { max, refusal } = accounts.limits.templates;
  if (findTemplate(db, accountId, { name }) !== null) return;
  const used = countTemplates(db, accountId);
  if (used >= max) throw new ApiError("too_many_requests", refusal({ max, used }), { limit: max });
}

/** The settings of the template of a sandbox, with its machine. Its own variables, which may be secret, are left out. */
function configOf({ db }: ServiceParts, { accountId }: Principal, id: SandboxId): TemplateConfig {
  const { vcpus, memoryBytes } = requireSandbox(db, accountId, id).resources;
  const { templateId, buildId } = findRecord(db, id) ?? { templateId: "", buildId: null };
  const build = buildId === null ? null : findBuild(db, templateId, buildId);
  return { ...NO_CONFIG, ...build?.config, vcpus, memoryBytes };
}

/** As `TemplateUseCases.snapshots`. */
export function snapshots({ db }: ServiceParts, { accountId }: Principal, request: ListSnapshots): SnapshotPage {
  const { cursor, limit, ...filter } = request;
  const after = cursor === undefined ? undefined : placeOf(cursor);
  const rows = listSnapshots(db, accountId, { ...filter, after, limit: limit + 1 });
  const last = rows.length > limit ? rows[limit - 1] : undefined;
  return { snapshots: rows.slice(0, limit), next: last === undefined ? null : cursorOf(last) };
}

/**
 * The tag in a reference to a template that has others, too; null when the whole template is meant.
 * @throws ApiError `not_found` for a tag that the template does not have
 */
export function tagOfSeveral(
  { db }: ServiceParts,
  { accountId }: Principal,
  { id }: Pick<TemplateRow, "id">,
  reference: string,
): string | null {
  const { tag = null } = parseTemplateName(reference, accountId) ?? {};
  if (tag === null) return null;
  const tags = templateTagsOf(db, id).map((each) => each.tag);
  if (!tags.includes(tag)) throw noSuchTemplate(reference);
  return tags.length > 1 ? tag : null;
}

function cursorOf({ createdAt, templateId, tag }: Snapshot): string {
  return Buffer.from(`${createdAt} ${templateId} ${tag}`, "utf8").toString("base64url");
}

/** @throws ApiError `validation_error` */
function placeOf(cursor: string) {
  const [time = "", templateId = "", tag = "", ...rest] = Buffer.from(cursor, "base64url").toString("utf8").split(" ");
  if (/^\d{1,15}$/.test(time) && tag !== "" && rest.length === 0) return { createdAt: Number(time), templateId, tag };
  throw new ApiError("validation_error", "nextToken must be that of a page", { field: "nextToken" });
}
