import { resolveImage } from "../../db/images/images.ts";
import type { TemplateConfig } from "../../db/templates/schema.ts";
import { ApiError } from "../../domain/errors.ts";
import { type ImageId, parseUuid } from "../../domain/ids.ts";
import { isStoredTag } from "../../domain/image.ts";
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
const NO_CONFIG: TemplateConfig = { user: null, cwd: null, env: {}, startCmd: null, readyCmd: null };
/** The tags that a name without one means, the first that there is. */
const DEFAULT_TAGS = ["default", "latest"] as const;
const UUID_DIGITS = /^([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/i;

/** As `TemplateUseCases.resolve`. */
export function resolve({ db }: ServiceParts, { accountId }: Principal, reference: string): ResolvedTemplate {
  const uuid = parseUuid<ImageId>(reference.replace(UUID_DIGITS, "$1-$2-$3-$4-$5"));
  const image = uuid === null ? null : resolveImage(db, accountId, { uuid });
  if (image !== null) {
    return { templateId: image.id, alias: null, buildId: null, imageId: image.id, config: NO_CONFIG };
  }
  const names = reference.includes(":") ? [] : DEFAULT_TAGS.map((tag) => `${reference}:${tag}`);
  for (const tag of [reference, ...names]) {
    const tagged = isStoredTag(tag) ? resolveImage(db, accountId, { tag }) : null;
    if (tagged !== null) {
      return { templateId: reference, alias: reference, buildId: null, imageId: tagged.id, config: NO_CONFIG };
    }
  }
  throw new ApiError("not_found", `template '${reference}' not found`, { template: reference });
}
