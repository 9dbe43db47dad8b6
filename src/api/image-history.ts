import { Type } from "@sinclair/typebox";
import { descendants, getHistory, type HistoryRow, lineage } from "../db/history.ts";
import type { ImageRow } from "../db/images.ts";
import { layerChain } from "../db/layers.ts";
import { deleteImage } from "../db/removal.ts";
import { ApiError } from "../domain/errors.ts";
import { byteStringToBytes, type GuestPath } from "../domain/guest-path.ts";
import { type DiffItem, ImageDetails, ImageDiff, ImageStep } from "../domain/history.ts";
import { type ImageId, isoTime } from "../domain/ids.ts";
import { LIMIT_DEFAULT } from "../domain/listing.ts";
import { TYPE_NAMES } from "../domain/listing-format.ts";
import { ChildrenQuery, DiffQuery, PageQuery } from "../domain/query.ts";
import { type Difference, diffPage } from "../storage/image-diff.ts";
import { sharedLayerHolds } from "../storage/layer-holds.ts";
import { DIFF_MS_MAX } from "../storage/limits.ts";
import { releaseLayers } from "../supervisor/space.ts";
import { imageOf, layerFiles, noSuchImage, pathFields, requireImage } from "./image-access.ts";
import { empty, json } from "./reply.ts";
import { jsonSpec } from "./responses.ts";
import { type Route, route } from "./route.ts";
import type { ApiServices } from "./services.ts";

export function imageHistoryRoutes(services: ApiServices): Route[] {
  return [
    detailsRoute(services),
    deleteRoute(services),
    lineageRoute(services),
    childrenRoute(services),
    diffRoute(services),
  ];
}

function detailsRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/images/:uuid",
    scope: "images:read",
    id: "getImage",
    tag: "Images",
    summary: "Read one image: its parent and what it added",
    responses: { 200: jsonSpec("the image", ImageDetails) },
    errors: ["not_found"],
    handle: ({ principal, params }) => {
      const image = requireImage(services, principal, params["uuid"] ?? "");
      return json(200, detailsOf(image, getHistory(services.db, image.id)?.parentId ?? image.parentId));
    },
  });
}

function deleteRoute(services: ApiServices): Route {
  return route({
    method: "DELETE",
    path: "/v1/images/:uuid",
    scope: "images:delete",
    id: "deleteImage",
    tag: "Images",
    summary: "Delete an image and its tag; images that were made from it stay, and so does what they need of it",
    responses: { 204: { description: "the image is gone" } },
    errors: ["not_found", "conflict"],
    handle: async ({ principal, params }) => {
      const id = params["uuid"] as ImageId;
      const outcome = deleteImage(services.db, principal.accountId, id);
      if (outcome === "not_found") throw noSuchImage(id);
      if (outcome === "in_use") {
        throw new ApiError("conflict", "an instance that is waiting or running uses the image", { uuid: id });
      }
      await releaseLayers(services, outcome.deleted);
      return empty(204);
    },
  });
}

function lineageRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/images/:uuid/lineage",
    scope: "images:read",
    id: "imageLineage",
    tag: "Images",
    summary: "List how an image came to be: the image itself, what it was made from, and so on to the import",
    query: PageQuery,
    responses: { 200: jsonSpec("a page of steps, the image first", Type.Array(ImageStep)) },
    errors: ["not_found"],
    handle: async ({ principal, params, query }) => {
      const image = requireImage(services, principal, params["uuid"] ?? "");
      const page = { limit: query.limit ?? LIMIT_DEFAULT, offset: query.offset ?? 0 };
      return json(200, (await lineage(services.db, image.id, page)).map(stepOf));
    },
  });
}

function childrenRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/images/:uuid/children",
    scope: "images:read",
    id: "imageChildren",
    tag: "Images",
    summary: "List the images that were made from an image, the oldest first",
    query: ChildrenQuery,
    responses: { 200: jsonSpec("a page of steps; a parent comes before its children", Type.Array(ImageStep)) },
    errors: ["not_found"],
    handle: async ({ principal, params, query }) => {
      const image = requireImage(services, principal, params["uuid"] ?? "");
      const page = { limit: query.limit ?? LIMIT_DEFAULT, offset: query.offset ?? 0 };
      const rows = await descendants(services.db, image.id, { ...page, recursive: query.recursive === true });
      return json(200, rows.map(stepOf));
    },
  });
}

function diffRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/images/:uuid/diff",
    scope: "images:read",
    id: "imageDiff",
    tag: "Images",
    summary: "List the paths that an image has otherwise than another one, by default the one that it was made from",
    query: DiffQuery,
    responses: {
      200: jsonSpec(
        "a page of paths, directories before what is in them; one that took long is short, or even empty, with a next",
        ImageDiff,
      ),
    },
    errors: ["not_found"],
    handle: async ({ request, principal, params, query }) => {
      const image = requireImage(services, principal, params["uuid"] ?? "");
      const { now, before, against } = comparedLayers(services, image, query.against, (id) =>
        requireImage(services, principal, id),
      );
      using _held = sharedLayerHolds.hold([...now, ...before].map(({ id }) => id));
      const layers = { now: layerFiles(services, now), before: layerFiles(services, before) };
      const limit = query.limit ?? LIMIT_DEFAULT;
      const bounds = { after: cursorPath(query.cursor), limit, msMax: DIFF_MS_MAX, wanted: request.signal };
      const { found, next } = await diffPage(layers, bounds);
      return json(200, {
        uuid: image.id,
        ...(against === null ? {} : { against }),
        items: found.map(diffItem),
        ...(next === null ? {} : { next: byteStringToBytes(next).toString("base64url") }),
      });
    },
  });
}

/** The layers of both images. Those of a parent are known also when the parent itself is deleted. */
function comparedLayers(
  services: ApiServices,
  image: ImageRow,
  other: string | undefined,
  require: (id: string) => ImageRow,
) {
  const now = layerChain(services.db, image.layerId);
  if (other !== undefined) {
    const against = require(other.toLowerCase());
    return { now, before: layerChain(services.db, against.layerId), against: against.id };
  }
  const parentId = getHistory(services.db, image.id)?.parentId ?? null;
  return { now, before: parentId === null ? [] : now.slice(0, -1), against: parentId };
}

function cursorPath(cursor: string | undefined): GuestPath | null {
  return cursor === undefined ? null : (Buffer.from(cursor, "base64url").toString("latin1") as GuestPath);
}

function diffItem({ path, change, now, before }: Difference): DiffItem {
  const shown = (now ?? before)?.entry.type ?? "f";
  return {
    ...pathFields(path),
    change,
    type: TYPE_NAMES[shown],
    ...(now === null ? {} : { size_bytes: now.entry.size }),
    ...(before === null || before.entry.type === shown ? {} : { previous_type: TYPE_NAMES[before.entry.type] }),
    ...(before === null ? {} : { previous_size_bytes: before.entry.size }),
  };
}

function detailsOf(row: ImageRow, parent: ImageId | null): ImageDetails {
  return {
    ...imageOf(row),
    ...(parent === null ? {} : { parent }),
    size_bytes: row.sizeBytes,
    ...(row.digest === null ? {} : { digest: row.digest }),
  };
}

function stepOf(row: HistoryRow): ImageStep {
  const isRun = row.command !== null || row.parentId !== null;
  return {
    uuid: row.imageId,
    ...(row.tag === null ? {} : { tag: row.tag }),
    created_at: isoTime(row.createdAt),
    ...(row.parentId === null ? {} : { parent: row.parentId }),
    size_bytes: row.sizeBytes,
    ...(row.digest === null ? {} : { digest: row.digest }),
    deleted: !row.exists,
    operation: row.operationId,
    kind: isRun ? "instance" : "image_import",
    ...(row.source === null ? {} : { source: row.source }),
    ...(row.command === null ? {} : { command: [...row.command] }),
    ...(row.commandCut ? { command_truncated: true } : {}),
    ...(row.exitCode === null ? {} : { exit_code: row.exitCode }),
    ...(isRun ? { timed_out: row.timedOut } : {}),
    ...(row.startedAt === null ? {} : { started_at: isoTime(row.startedAt) }),
  };
}
