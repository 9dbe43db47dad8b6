import type { TagRow } from "../../db/images/tags.ts";
import { buildsOf, type ListedBuild } from "../../db/templates/builds.ts";
import { listPlainTags, listTemplates, type TemplateSummaryRow } from "../../db/templates/listing.ts";
import { type TemplateRow, type TemplateTagRow, templateTagsOf } from "../../db/templates/templates.ts";
import { nameOfImageTag, TAG_DEFAULT } from "../../domain/templates/names.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { NO_CONFIG, noSuchTemplate, taggedImage, templateOf } from "./resolve.ts";

/** A template. Times are `milliseconds` since the epoch. */
export type Template = Omit<TemplateRow, "accountId">;
/** A build without its log; `imageId` is null until it is ready, and the image may have been deleted since. */
export type TemplateBuild = ListedBuild;
export type TemplateTag = TemplateTagRow;

/** A template with its latest build, if it has any, and their number. */
export interface TemplateSummary extends Omit<TemplateSummaryRow, "template"> {
  readonly template: Template;
}

/** A template with its latest builds and its tags, the newest first. */
export interface TemplateDetails {
  readonly template: Template;
  readonly builds: readonly TemplateBuild[];
  readonly tags: readonly TemplateTag[];
}

/** Builds of a template that are listed. */
const LISTED_BUILDS_COUNT_MAX = 100;

/** As `TemplateUseCases.list`. */
export function list(parts: ServiceParts, { accountId }: Principal): TemplateSummary[] {
  const { db, accounts } = parts;
  const { max } = accounts.limits.templates;
  const built = listTemplates(db, accountId, max);
  // The names of a template come one after the other: the first one is that which clients get.
  const plain = new Map<string, TemplateSummary>();
  for (const tag of listPlainTags(db, accountId, max - built.length)) {
    const name = nameOfImageTag(tag.name);
    if (plain.has(name)) continue;
    const { template, builds } = detailsOfTag(parts, tag);
    plain.set(name, { template, latest: builds[0] ?? null, buildsCount: builds.length });
  }
  const byName = (one: TemplateSummary, other: TemplateSummary) => (one.template.name < other.template.name ? -1 : 1);
  return [...built, ...plain.values()].sort(byName);
}

/** As `TemplateUseCases.get`. */
export function details(parts: ServiceParts, principal: Principal, reference: string): TemplateDetails {
  const { db } = parts;
  const template = templateOf(parts, principal, reference);
  if (template !== null) {
    const { id } = template;
    return { template, builds: buildsOf(db, id, LISTED_BUILDS_COUNT_MAX), tags: templateTagsOf(db, id) };
  }
  const tag = taggedImage(parts, principal, reference);
  if (tag === null) throw noSuchTemplate(reference);
  return detailsOfTag(parts, tag);
}

/** The template that a tag of an image stands for: its only build has the id of the image. */
function detailsOfTag({ limits }: ServiceParts, { name: imageTag, imageId, setAt }: TagRow): TemplateDetails {
  const name = nameOfImageTag(imageTag);
  const times = { createdAt: setAt, updatedAt: setAt };
  const template = { id: name, name, public: false, ...times, spawnCount: 0, lastSpawnedAt: null, sandboxId: null };
  const tag = name.split(":")[1] ?? TAG_DEFAULT;
  const { vcpusDefault: vcpus, memoryBytesDefault: memoryBytes } = limits;
  const build = {
    ...{ id: imageId, templateId: name, status: "ready" as const, tags: [tag], imageId },
    ...{ config: { ...NO_CONFIG, vcpus, memoryBytes }, reason: null, createdAt: setAt, finishedAt: setAt },
  };
  return { template, builds: [build], tags: [{ tag, buildId: imageId, createdAt: setAt }] };
}
