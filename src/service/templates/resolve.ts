import { resolveImage } from "../../db/images/images.ts";
import { findTag, type TagRow } from "../../db/images/tags.ts";
import type { ListedBuild } from "../../db/templates/builds.ts";
import type { TemplateConfig } from "../../db/templates/schema.ts";
import { findTemplate, type TemplateRow, taggedBuild } from "../../db/templates/templates.ts";
import { ApiError } from "../../domain/errors.ts";
import { type ImageId, parseUuidOrDigits } from "../../domain/ids.ts";
import { isStoredTag } from "../../domain/image.ts";
import {
  DEFAULT_TAGS,
  imageTag,
  isTemplateId,
  nameOfImageTag,
  parseTemplateName,
} from "../../domain/templates/names.ts";
import type { Principal, ServiceParts } from "../parts.ts";

export type { TemplateConfig } from "../../db/templates/schema.ts";

/** The image and the settings that a sandbox begins with. */
export interface ResolvedTemplate {
  /** the same for every way of naming it */
  readonly templateId: string;
  /** its name; null: it has none */
  readonly alias: string | null;
  /** null: not a build */
  readonly buildId: string | null;
  readonly imageId: ImageId;
  readonly config: TemplateConfig;
}

/** A template that is a plain image has no settings. */
export const NO_CONFIG: TemplateConfig = { user: null, cwd: null, env: {}, startCmd: null, readyCmd: null };
/** The account whose templates clients name as theirs: ours have the same names. */
const VENDOR = "e2bdev";

/** As `TemplateUseCases.resolve`. */
export function resolve(parts: ServiceParts, principal: Principal, text: string): ResolvedTemplate {
  const { db } = parts;
  const { accountId } = principal;
  const reference = plainName(text, accountId);
  const uuid = parseUuidOrDigits<ImageId>(reference);
  const image = uuid === null ? null : resolveImage(db, accountId, { uuid });
  if (image !== null) {
    return { templateId: image.id, alias: null, buildId: null, imageId: image.id, config: NO_CONFIG };
  }
  const built = resolveBuilt(parts, principal, reference);
  if (built !== null) return built;
  const tagged = taggedImage(parts, principal, text);
  if (tagged === null) throw noSuchTemplate(text);
  const name = nameOfImageTag(tagged.name);
  return { templateId: name, alias: name, buildId: null, imageId: tagged.imageId, config: NO_CONFIG };
}

/** The tag of an image that a reference means; null when there is none. */
export function taggedImage({ db }: ServiceParts, { accountId }: Principal, text: string): TagRow | null {
  for (const name of namesOf(plainName(text, accountId))) {
    const tag = isStoredTag(name) ? findTag(db, accountId, name) : null;
    if (tag !== null) return tag;
  }
  return null;
}

/** The tags of images that a reference can mean, the first that there is. */
function namesOf(reference: string): readonly string[] {
  const names = reference.includes(":") ? [] : DEFAULT_TAGS.map((tag) => `${reference}:${tag}`);
  const latest = reference.endsWith(":latest") ? [reference.slice(0, -":latest".length)] : [];
  return [reference, ...names, ...latest];
}

export function noSuchTemplate(reference: string): ApiError {
  return new ApiError("not_found", `template '${reference.slice(0, 200)}' not found`, { template: reference });
}

/** The template of the account that a reference names, without its tag; null when there is none. */
export function templateOf({ db }: ServiceParts, { accountId }: Principal, text: string): TemplateRow | null {
  const [first = ""] = plainName(text, accountId).split(":");
  const byId = isTemplateId(first) ? findTemplate(db, accountId, { id: first }) : null;
  return byId ?? findTemplate(db, accountId, { name: first.toLowerCase() });
}

/** The reference without the account, or the one that clients have for the vendor's templates. */
function plainName(text: string, account: string): string {
  const owner = [account, VENDOR].find((name) => text.startsWith(`${name}/`));
  return owner === undefined ? text : text.slice(owner.length + 1);
}

/** The build that a reference names, or the image to which its tag was moved since; null when there is none. */
function resolveBuilt(parts: ServiceParts, principal: Principal, reference: string): ResolvedTemplate | null {
  const { db } = parts;
  const template = templateOf(parts, principal, reference);
  if (template === null) return null;
  const { tag = null } = parseTemplateName(reference, principal.accountId) ?? {};
  const { id: templateId, name: alias } = template;
  for (const each of tag === null ? DEFAULT_TAGS : [tag]) {
    const build = taggedBuild(db, templateId, each);
    const tagged = resolveImage(db, principal.accountId, { tag: imageTag(alias, each) });
    const isOfBuild = build !== null && (tagged === null || tagged.id === build.imageId);
    const image = isOfBuild ? imageOf(parts, principal, build) : (tagged?.id ?? null);
    if (image === null) continue;
    const [buildId, config] = isOfBuild ? [build.id, build.config] : [null, NO_CONFIG];
    return { templateId, alias, buildId, imageId: image, config };
  }
  return null;
}

/** The image of a build; null when it was deleted. */
function imageOf({ db }: ServiceParts, { accountId }: Principal, { imageId }: Pick<ListedBuild, "imageId">) {
  return imageId === null ? null : (resolveImage(db, accountId, { uuid: imageId })?.id ?? null);
}
