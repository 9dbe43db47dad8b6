import { getFile } from "../db/files.ts";
import { descendants, getHistory, type HistoryRow, lineage } from "../db/images/history.ts";
import { getImage, type ImageRow, imageDefaults, listImages, resolveImage } from "../db/images/images.ts";
import { type ImageOriginKind, listImagesPerTag } from "../db/images/tag-listing.ts";
import { removeTags, setTag, type TagChange } from "../db/images/tags.ts";
import { deleteImage } from "../db/removal.ts";
import { ApiError } from "../domain/errors.ts";
import { type FileId, type ImageId, isoTime, type LayerId, type OperationId } from "../domain/ids.ts";
import { IMPORT_TIMEOUT_SECONDS_DEFAULT } from "../domain/image.ts";
import { parseRegistryReference } from "../domain/registry-reference.ts";
import { timeBounds } from "../domain/text/time-bound.ts";
import type { GuestPath } from "../domain/tree/guest-path.ts";
import { ociArchiveChunks } from "../storage/archive/oci-archive.ts";
import type { LayerChain } from "../storage/layers/layer-store.ts";
import { DIFF_MS_MAX } from "../storage/limits.ts";
import { type DiffPage, diffPage } from "../storage/tree/image-diff.ts";
import type { ImportSource } from "../supervisor/imports/import-image.ts";
import { importKind } from "../supervisor/kinds/image-import.ts";
import type { Credentials } from "../supervisor/operations/kind.ts";
import { releaseImage } from "../supervisor/reclaim.ts";
import { type Changed, change } from "./change.ts";
import { type ByteSource, noSuchImage, readerOf, requireImage } from "./inspection/layers.ts";
import type { ListRequest, Principal, ServiceParts } from "./parts.ts";

/**
 * An image, and the operation that made it if that is still stored. `tag` is the one that was set last, except in a listing
 * of tags. Times are `milliseconds` since the epoch.
 */
export type Image = Pick<ImageRow, "id" | "tag" | "createdAt" | "operationId">;
/** An image with its parent and the disk space that it added to the parent, in `bytes`. */
export type ImageDetails = Image & Pick<ImageRow, "sizeBytes" | "digest" | "parentId">;
/** A step of a lineage: an image, which may be deleted, and the operation that made it. */
export type ImageStep = Omit<HistoryRow, "accountId">;
/** A path at which two images differ. */
export type Difference = DiffPage["differences"][number];

export interface ListImages extends ListRequest {
  readonly tagged?: boolean | undefined;
  readonly tagPrefix?: string | undefined;
  /** true: one row for each tag of an image; the tag that equals `tagPrefix` comes first */
  readonly perTag?: boolean | undefined;
}

/** A listing of tags, with filters that the plain listing does not have. */
export interface ListTags extends ListImages {
  readonly perTag: true;
  readonly id?: ImageId | undefined;
  readonly origin?: ImageOriginKind | undefined;
}

export interface ImportImage {
  readonly source: /** as the caller spelled it */
    | { readonly kind: "registry"; readonly reference: string }
    /** an OCI layout archive or docker-archive that was uploaded */
    | { readonly kind: "archive"; readonly fileId: FileId };
  readonly credentials?: Credentials | undefined;
  readonly tag?: string | undefined;
  readonly timeoutSeconds?: number | undefined;
  /** true: an image of the account that an import of the same digest made is the result, if there is one */
  readonly reuse?: boolean | undefined;
  /** true: the tag is added to those of such an image; by default it replaces the one that the image shows */
  readonly keepTags?: boolean | undefined;
}

export type Page = Pick<ListRequest, "limit" | "offset" | "signal">;

export interface DiffRequest {
  readonly id: ImageId;
  /** the image to compare with; null: the parent, even if it is deleted */
  readonly against: ImageId | null;
  /** the last path of the previous page; null for the first page */
  readonly after: GuestPath | null;
  readonly limit: number;
  readonly signal: AbortSignal;
}

export interface Diff extends DiffPage {
  /** null: compared with an empty image */
  readonly against: ImageId | null;
}

/** All functions but `list` and `import` throw ApiError `not_found` when the account has no such image. */
export interface ImageUseCases {
  /**
   * Lists images, the newest first.
   * @throws ApiError `validation_error` when a time bound is malformed; as `Scans.all` does
   */
  list(principal: Principal, request: ListImages | ListTags): Promise<readonly Image[]>;
  /** Queues an import. @throws ApiError `validation_error`, `not_found` for the file; as `OperationsPort.submit` does */
  import(principal: Principal, request: ImportImage): Promise<Changed<OperationId>>;
  get(principal: Principal, id: ImageId): ImageDetails;
  /** Deletes the image and its tags; its children stay. @throws ApiError `conflict` while an instance uses it */
  delete(principal: Principal, id: ImageId): Promise<Changed<void>>;
  /** Moves the tag to the image, where it replaces the shown tag. Tags that are not shown stay. */
  setTag(principal: Principal, id: ImageId, tag: string): Changed<Image>;
  /**
   * Moves the tag to the image, which shows it from now on; its other tags stay.
   * @throws ApiError `conflict` when the image has as many tags as it may have
   */
  addTag(principal: Principal, id: ImageId, tag: string): Changed<Image>;
  /** Removes one tag of the image, or all if `tag` is not given. A tag that the image does not have changes nothing. */
  removeTags(principal: Principal, id: ImageId, tag?: string): Changed<Image>;
  /** The image and its ancestors, from the image itself to the import. @throws as `Scans.all` does */
  lineage(principal: Principal, id: ImageId, page: Page): Promise<readonly ImageStep[]>;
  /**
   * Images that were made from the image by one run, or, if `recursive`, by any number; a parent comes before its children.
   * @throws as `Scans.all` does
   */
  children(
    principal: Principal,
    id: ImageId,
    page: Page & { readonly recursive: boolean },
  ): Promise<readonly ImageStep[]>;
  /**
   * A page of the paths at which two images differ.
   * @throws ApiError `not_found` also for the other image; as `Accounts.wait` does
   */
  diff(principal: Principal, request: DiffRequest): Promise<Diff>;
  /** Streams the image as an OCI layout in a tar archive. @throws ApiError as `Accounts.wait` does */
  save(principal: Principal, id: ImageId, signal: AbortSignal): Promise<ByteSource>;
}

export function imageUseCases(parts: ServiceParts): ImageUseCases {
  const { db, operations, clock, changes } = parts;
  const orNotFound = (id: ImageId, row: ImageRow | null): ImageRow => {
    if (row === null) throw noSuchImage(id);
    return row;
  };
  const tagged = (principal: Principal, id: ImageId, name: string, how: TagChange): Changed<Image> => {
    const { accountId } = principal;
    return change(parts, principal, { noun: "image", verb: "tag", id }, () => {
      const before = resolveImage(db, accountId, { tag: name });
      const image = orNotFound(id, setTag(db, accountId, id, { name, change: how, now: clock() }));
      for (const changed of new Set([id, before?.id ?? id])) changes.report(accountId, { type: "image", id: changed });
      return image;
    });
  };
  return {
    async list({ accountId }, { since, until, perTag = false, ...filter }) {
      const window = { ...filter, ...timeBounds({ since, until }, clock()) };
      return await (perTag ? listImagesPerTag : listImages)(db, accountId, window);
    },
    async import(principal, { source, credentials = null, tag = null, timeoutSeconds, reuse, keepTags }) {
      return await change(parts, principal, { noun: "image", verb: "import", id: (id) => id }, async () => {
        const { id } = await operations.submit(principal.accountId, importKind, {
          source: resolveSource(parts, principal, source),
          credentials,
          tag,
          timeoutSeconds: timeoutSeconds ?? IMPORT_TIMEOUT_SECONDS_DEFAULT,
          reuse: reuse ?? false,
          keepTags: keepTags ?? false,
        });
        return id;
      });
    },
    get(principal, id) {
      const image = requireImage(parts, principal, id);
      return { ...image, parentId: getHistory(db, image.id)?.parentId ?? image.parentId };
    },
    async delete(principal, id) {
      const { accountId } = principal;
      return await change(parts, principal, { noun: "image", verb: "delete", id }, async () => {
        const outcome = deleteImage(db, accountId, id);
        if (outcome === "not_found") throw noSuchImage(id);
        if (outcome === "in_use") {
          throw new ApiError("conflict", "an instance that is waiting or running, or a sandbox, uses the image", {
            uuid: id,
          });
        }
        changes.report(accountId, { type: "deleted", id });
        await releaseImage(parts, { id, layerId: outcome.deleted }, accountId);
      });
    },
    setTag: (principal, id, name) => tagged(principal, id, name, "replaced"),
    addTag: (principal, id, name) => tagged(principal, id, name, "added"),
    removeTags(principal, id, tag) {
      const { accountId } = principal;
      return change(parts, principal, { noun: "image", verb: "untag", id }, () => {
        const image = orNotFound(id, removeTags(db, accountId, id, tag));
        changes.report(accountId, { type: "image", id });
        return image;
      });
    },
    lineage: async (principal, id, { signal, ...page }) =>
      await lineage(db, requireImage(parts, principal, id).id, page, { accountId: principal.accountId, signal }),
    children: async (principal, id, { signal, ...page }) =>
      await descendants(db, requireImage(parts, principal, id).id, page, { accountId: principal.accountId, signal }),
    diff: (principal, request) => diff(parts, principal, request),
    async save(principal, id, signal) {
      requireImage(parts, principal, id);
      using undo = new DisposableStack();
      undo.use(await parts.accounts.wait(principal.accountId, "walks", { signal }));
      // The image may have been deleted during the wait: look it up again.
      const image = requireImage(parts, principal, id);
      const held = undo.use(parts.layers.open(image.layerId));
      const defaults = imageDefaults(db, id);
      const archived = { layers: held.files, name: image.tag, createdAt: isoTime(image.createdAt), defaults };
      const chunks = ociArchiveChunks(archived, readerOf(principal.accountId, signal), held.openLayers);
      return { chunks, held: undo.move() };
    },
  };
}

function resolveSource(
  { db, defaultRegistry }: ServiceParts,
  { accountId }: Principal,
  source: ImportImage["source"],
): ImportSource {
  if (source.kind === "registry") {
    const { canonical } = parseRegistryReference(source.reference, { defaultRegistry });
    return { kind: "registry", reference: canonical };
  }
  const { fileId } = source;
  const file = getFile(db, accountId, { uuid: fileId });
  if (file === null) throw new ApiError("not_found", "no such file", { field: "file", uuid: fileId });
  return { kind: "archive", fileId, sha256: file.sha256 };
}

async function diff(parts: ServiceParts, principal: Principal, request: DiffRequest): Promise<Diff> {
  requireImage(parts, principal, request.id);
  using _walk = await parts.accounts.wait(principal.accountId, "walks", { signal: request.signal });
  const image = requireImage(parts, principal, request.id);
  using now = parts.layers.open(image.layerId);
  const other = comparedWith(parts, principal, image, request.against);
  using before = openBefore(parts, other, now);
  const isOneLine = other.id !== null && isOfOneLine(parts, image.id, other.id);
  const layers = { now: now.files, before: before.files, isOneLine };
  const { after, limit } = request;
  const cancellation = readerOf(principal.accountId, request.signal);
  const page = await diffPage(layers, { after, limit, msMax: DIFF_MS_MAX, cancellation }, now.openLayers);
  return { ...page, against: other.id };
}

/** The other image of a comparison. */
interface Compared {
  readonly id: ImageId | null;
  /** null for the image's own parent, which may be deleted, when the image has a layer of its own */
  readonly layerId: LayerId | null;
}

function comparedWith(parts: ServiceParts, principal: Principal, image: ImageRow, other: ImageId | null): Compared {
  if (other === null) {
    const id = getHistory(parts.db, image.id)?.parentId ?? null;
    const parent = id === null ? null : getImage(parts.db, principal.accountId, id);
    // An image whose step changed no file has the layer of its parent.
    return { id, layerId: parent?.layerId ?? (id !== null && image.sizeBytes === 0 ? image.layerId : null) };
  }
  const { id, layerId } = requireImage(parts, principal, other);
  return { id, layerId };
}

/** Largest number of steps that are searched for the image from which another one was made. */
const LINE_STEPS_MAX = 256;

/** True when one of the images was made from the other. */
function isOfOneLine({ db }: ServiceParts, a: ImageId, b: ImageId): boolean {
  const isBelow = (id: ImageId, ancestor: ImageId): boolean => {
    let parent: ImageId | null = id;
    for (let step = 0; step < LINE_STEPS_MAX && parent !== null && parent !== ancestor; step++) {
      parent = getHistory(db, parent)?.parentId ?? null;
    }
    return parent === ancestor;
  };
  return isBelow(a, b) || isBelow(b, a);
}

/** Opens the layers of the other image. Those of a deleted parent are the image's own without the top one. */
function openBefore({ layers }: ServiceParts, { id, layerId }: Compared, now: LayerChain): LayerChain {
  if (layerId !== null) return layers.open(layerId);
  return layers.hold(id === null ? [] : now.ids.slice(0, -1));
}
