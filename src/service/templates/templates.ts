import { resolveImage } from "../../db/images/images.ts";
import { removeTags } from "../../db/images/tags.ts";
import {
  buildLogOf,
  buildsOf,
  countAccountBuilds,
  findBuild,
  insertBuild,
  tagBuild,
} from "../../db/templates/builds.ts";
import { buildFile, setBuildFile } from "../../db/templates/cache.ts";
import {
  countSpawn,
  countTemplates,
  deleteTemplate,
  ensureTemplate,
  findTemplate,
  removeTemplateTag,
  setTemplatePublic,
  type TemplateRow,
  templateTagsOf,
} from "../../db/templates/templates.ts";
import { ApiError } from "../../domain/errors.ts";
import type { FileId } from "../../domain/ids.ts";
import type { BuildLogEntry } from "../../domain/templates/build-log.ts";
import {
  imageTag,
  requireTemplateName,
  requireTemplateTag,
  TAG_DEFAULT,
  TEMPLATE_TAGS_COUNT_MAX,
} from "../../domain/templates/names.ts";
import { type Changed, change } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import {
  details,
  list,
  type Template,
  type TemplateBuild,
  type TemplateDetails,
  type TemplateSummary,
} from "./listing.ts";
import { noSuchTemplate, type ResolvedTemplate, resolve, taggedImage, templateOf } from "./resolve.ts";
import {
  type ListSnapshots,
  type Snapshot,
  type SnapshotInput,
  type SnapshotPage,
  snapshot,
  snapshots,
  tagOfSeveral,
} from "./snapshots.ts";
import { type BuildInput, startBuild } from "./start.ts";

const MEMORY_BYTES_MIN = 134_217_728;

export interface BuildRequest {
  /** `name` or `name:tag` */
  readonly name: string;
  /** further tags */
  readonly tags?: readonly string[] | undefined;
  /** more than the operator allows is lowered to that */
  readonly vcpus?: number | undefined;
  readonly memoryBytes?: number | undefined;
}

/**
 * Named images that sandboxes begin with, and how they are built. A template is named by its id, or by its name with a tag or
 * without, and with the account or not. All functions with a template throw ApiError `not_found` when there is none.
 */
export interface TemplateUseCases {
  /** space that a sandbox of a template can write to, in `bytes` */
  readonly diskBytes: number;
  /**
   * The template of a reference: a build of a template, a tag of an image, a name of which there is a tag `name:default` or
   * `name:latest`, or the id of an image, with or without dashes.
   * @throws ApiError `not_found`
   */
  resolve(principal: Principal, reference: string): ResolvedTemplate;
  /** Counts a sandbox that began with a template; any other id changes nothing. */
  spawned(principal: Principal, templateId: string): void;
  /** At most the number that an account can have, by their names. Tags of images without a slash are among them. */
  list(principal: Principal): readonly TemplateSummary[];
  /** A template that is built by steps, a snapshot, or a tag of an image. */
  get(principal: Principal, template: string): TemplateDetails;
  /** @throws ApiError `not_found` also for a build of another template */
  build(principal: Principal, template: string, buildId: string): TemplateBuild;
  /** The log of a build, the oldest line first. The array may grow. */
  log(principal: Principal, template: string, buildId: string): readonly BuildLogEntry[];
  /**
   * Makes a build that waits for its steps, and its template if there is none.
   * @throws ApiError `validation_error`, `too_many_requests`
   */
  request(
    principal: Principal,
    request: BuildRequest,
  ): Changed<{ readonly template: Template; readonly build: TemplateBuild }>;
  /** Begins a build. @throws ApiError `validation_error`; `conflict` when it does not wait; `too_many_requests` */
  start(principal: Principal, template: string, buildId: string, input: BuildInput): Changed<void>;
  /** Whether the account has uploaded files under that hash. */
  hasFiles(principal: Principal, hash: string): boolean;
  /** Names an uploaded file by the hash of its client. */
  setFiles(principal: Principal, hash: string, fileId: FileId): Changed<void>;
  /** Moves tags to the build that `target` names, and returns its id. @throws ApiError `validation_error`; `conflict` without a build */
  tag(
    principal: Principal,
    target: string,
    tags: readonly string[],
  ): Changed<{ readonly buildId: string; readonly tags: readonly string[] }>;
  /** Removes tags of a template; one that it does not have changes nothing. @throws ApiError `validation_error` */
  untag(principal: Principal, template: string, tags: readonly string[]): Changed<void>;
  setPublic(principal: Principal, template: string, isPublic: boolean): Changed<Template>;
  /**
   * Makes a template of the present files of a sandbox, which keeps running. It has the settings of the template of the sandbox.
   * @throws ApiError `validation_error`; `conflict` for the name of a template that is built by steps; `too_many_requests`; as
   *   `SandboxesPort.presentImage`
   */
  snapshot(principal: Principal, input: SnapshotInput): Promise<Changed<Snapshot>>;
  /** A page of the templates that `snapshot` made, the newest first. @throws ApiError `validation_error` for a cursor */
  snapshots(principal: Principal, request: ListSnapshots): SnapshotPage;
  /**
   * Deletes a template with its builds, which end, its tags, and the images that nothing else names. A reference that is a
   * tag of an image, or its id, deletes the tag, and the image if it has no other and nothing uses it. Of a template that has
   * several tags, only the one in the reference is deleted.
   */
  delete(principal: Principal, template: string): Promise<Changed<void>>;
}

export function templateUseCases(parts: ServiceParts): TemplateUseCases {
  const { db, clock, builds } = parts;
  const requireTemplate = (principal: Principal, reference: string): TemplateRow => {
    const template = templateOf(parts, principal, reference);
    if (template === null) throw noSuchTemplate(reference);
    return template;
  };
  const requireBuild = (principal: Principal, reference: string, id: string): TemplateBuild => {
    const build = findBuild(db, requireTemplate(principal, reference).id, id.toLowerCase());
    if (build === null) throw new ApiError("not_found", "no such build", { build: id });
    return build;
  };
  return {
    diskBytes: parts.limits.diskBytesDefault,
    resolve: (principal, reference) => resolve(parts, principal, reference),
    spawned({ accountId }, id) {
      if (findTemplate(db, accountId, { id }) !== null) countSpawn(db, id, clock());
    },
    list: (principal) => list(parts, principal),
    get: (principal, reference) => details(parts, principal, reference),
    build: requireBuild,
    log(principal, reference, id) {
      const build = requireBuild(principal, reference, id);
      return builds.log(build.id) ?? (buildLogOf(db, build.id) as readonly BuildLogEntry[]);
    },
    request: (principal, request) => requestBuild(parts, principal, request),
    start: (principal, reference, id, input) =>
      startBuild(parts, principal, requireBuild(principal, reference, id), input),
    hasFiles: ({ accountId }, hash) => buildFile(db, accountId, hash) !== null,
    setFiles(principal, hash, fileId) {
      return change(parts, principal, { noun: "template", verb: "upload", id: hash }, () =>
        setBuildFile(db, { accountId: principal.accountId, hash, fileId, now: clock() }),
      );
    },
    tag: (principal, target, tags) => tag(parts, principal, requireTemplate(principal, target), { target, tags }),
    untag(principal, reference, names) {
      const template = requireTemplate(principal, reference);
      const tags = checkedTags(template.name, names);
      return change(parts, principal, { noun: "template", verb: "untag", id: template.id }, () => {
        for (const each of tags) untag(parts, principal, template, each);
      });
    },
    setPublic(principal, reference, isPublic) {
      const { id } = requireTemplate(principal, reference);
      return change(parts, principal, { noun: "template", verb: "change", id }, () => {
        setTemplatePublic(db, id, isPublic, clock());
        return requireTemplate(principal, id);
      });
    },
    snapshot: (principal, input) => snapshot(parts, principal, input),
    snapshots: (principal, request) => snapshots(parts, principal, request),
    async delete(principal, reference) {
      const template = templateOf(parts, principal, reference);
      const tag = template === null ? null : tagOfSeveral(parts, principal, template, reference);
      const id = template?.id ?? resolve(parts, principal, reference).imageId;
      return await change(parts, principal, { noun: "template", verb: "delete", id }, async () => {
        if (template === null) await removeImage(parts, principal, reference);
        else if (tag === null) await removeTemplate(parts, principal, template);
        else untag(parts, principal, template, tag);
      });
    },
  };
}

function requestBuild(parts: ServiceParts, principal: Principal, request: BuildRequest) {
  const { db, clock, limits, accounts } = parts;
  const { accountId } = principal;
  const { name, tag: ownTag } = requireTemplateName(request.name, accountId);
  const given = [...(ownTag === null ? [] : [ownTag]), ...(request.tags ?? [])];
  const tags = checkedTags(name, given.length === 0 ? [TAG_DEFAULT] : given);
  const { vcpus = limits.vcpusDefault, memoryBytes = limits.memoryBytesDefault } = request;
  if (vcpus < 1) throw new ApiError("validation_error", "cpuCount must be at least 1", { field: "cpuCount" });
  if (memoryBytes < MEMORY_BYTES_MIN) {
    throw new ApiError("validation_error", "memoryMB must be at least 128", { field: "memoryMB" });
  }
  const isNew = findTemplate(db, accountId, { name }) === null;
  const counted = [
    ["templates", isNew ? countTemplates(db, accountId) : -1],
    ["storedBuilds", countAccountBuilds(db, accountId)],
  ] as const;
  for (const [limit, used] of counted) {
    const { max, refusal } = accounts.limits[limit];
    if (used >= max) throw new ApiError("too_many_requests", refusal({ max, used }), { limit: max });
  }
  const config = {
    ...{ user: null, cwd: null, env: {}, startCmd: null, readyCmd: null },
    vcpus: Math.min(vcpus, limits.vcpusMax),
    memoryBytes: Math.min(memoryBytes, limits.memoryBytesMax),
  };
  const id = crypto.randomUUID();
  return change(parts, principal, { noun: "template", verb: "request", id }, () => {
    const template = ensureTemplate(db, accountId, name, clock());
    insertBuild(db, { id, templateId: template.id, tags, config }, clock());
    const build = findBuild(db, template.id, id);
    if (build === null) throw new Error("a build without a row");
    return { template, build };
  });
}

/** @throws ApiError `validation_error` */
function checkedTags(name: string, tags: readonly string[]): string[] {
  if (tags.length > TEMPLATE_TAGS_COUNT_MAX) {
    throw new ApiError("validation_error", `tags must be at most ${TEMPLATE_TAGS_COUNT_MAX}`, { field: "tags" });
  }
  return [...new Set(tags.map((each) => requireTemplateTag(each, name)))];
}

function tag(
  parts: ServiceParts,
  principal: Principal,
  template: TemplateRow,
  { target, tags: names }: { readonly target: string; readonly tags: readonly string[] },
) {
  const { db, clock, changes } = parts;
  const { accountId } = principal;
  const { buildId, imageId } = resolve(parts, principal, target);
  if (buildId === null) throw new ApiError("conflict", "the tag names no build", { target });
  const tags = checkedTags(template.name, names);
  return change(parts, principal, { noun: "template", verb: "tag", id: template.id }, () => {
    tagBuild(db, { template, buildId, imageId, tags, now: clock() });
    changes.report(accountId, { type: "image", id: imageId });
    return { buildId, tags };
  });
}

/** Removes a tag of a template, and the one of its image. */
function untag(parts: ServiceParts, { accountId }: Principal, { id, name }: TemplateRow, each: string): void {
  const { db, changes } = parts;
  const image = resolveImage(db, accountId, { tag: imageTag(name, each) });
  if (image !== null) {
    removeTags(db, accountId, image.id, imageTag(name, each));
    changes.report(accountId, { type: "image", id: image.id });
  }
  removeTemplateTag(db, id, each);
}

/** Deletes the tag that a reference means, or all of them for the id of an image, and the image when it has no tag then. */
async function removeImage(parts: ServiceParts, principal: Principal, reference: string): Promise<void> {
  const { db, builds, changes } = parts;
  const { accountId } = principal;
  const { imageId, alias } = resolve(parts, principal, reference);
  removeTags(db, accountId, imageId, alias === null ? undefined : taggedImage(parts, principal, reference)?.name);
  changes.report(accountId, { type: "image", id: imageId });
  await builds.drop(accountId, imageId);
}

async function removeTemplate(parts: ServiceParts, principal: Principal, template: TemplateRow): Promise<void> {
  const { db, builds } = parts;
  const { accountId } = principal;
  const rows = buildsOf(db, template.id, Number.MAX_SAFE_INTEGER);
  for (const { tag: each } of templateTagsOf(db, template.id)) untag(parts, principal, template, each);
  deleteTemplate(db, template.id);
  for (const { id } of rows) builds.cancel(id);
  for (const imageId of new Set(rows.map((row) => row.imageId))) {
    if (imageId !== null) await builds.drop(accountId, imageId);
  }
}
