import { Type } from "@sinclair/typebox";
import { byteStringToBytes, type GuestPath } from "../../domain/guest-path.ts";
import { type DiffItem, ImageDetails, ImageDiff, ImageStep } from "../../domain/history.ts";
import { type ImageId, isoTime } from "../../domain/ids.ts";
import { LIMIT_DEFAULT } from "../../domain/listing.ts";
import { TYPE_NAMES } from "../../domain/listing-format.ts";
import { ChildrenQuery, DiffQuery, PageQuery } from "../../domain/query.ts";
import type { Difference, ImageDetails as StoredDetails, ImageStep as StoredStep } from "../../service/images.ts";
import { empty, json } from "../reply.ts";
import { jsonSpec } from "../responses.ts";
import { type Route, route } from "../route.ts";
import { imageOf, pathFields } from "./image-wire.ts";
import { saveImageRoute } from "./save-image.ts";
import type { Surface } from "./surface.ts";

export function imageRoutes(surface: Surface): Route[] {
  return [
    detailsRoute(surface),
    deleteRoute(surface),
    lineageRoute(surface),
    childrenRoute(surface),
    diffRoute(surface),
    saveImageRoute(surface),
  ];
}

function detailsRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/images/:uuid",
    scope: "images:read",
    id: "getImage",
    tag: "Images",
    summary: "Read one image: its parent and what it added",
    responses: { 200: jsonSpec("the image", ImageDetails) },
    errors: ["not_found"],
    handle: ({ principal, params }) =>
      json(200, detailsOf(surface.service.images.get(principal, params["uuid"] as ImageId))),
  });
}

function deleteRoute(surface: Surface): Route {
  return route({
    method: "DELETE",
    path: "/images/:uuid",
    scope: "images:delete",
    id: "deleteImage",
    tag: "Images",
    summary: "Delete an image and its tag; images that were made from it stay, and so does what they need of it",
    responses: { 204: { description: "the image is gone" } },
    errors: ["not_found", "conflict"],
    handle: async ({ principal, params }) => {
      await surface.service.images.delete(principal, params["uuid"] as ImageId);
      return empty(204);
    },
  });
}

function lineageRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/images/:uuid/lineage",
    scope: "images:read",
    id: "imageLineage",
    tag: "Images",
    summary: "List how an image came to be: the image itself, what it was made from, and so on to the import",
    query: PageQuery,
    responses: { 200: jsonSpec("a page of steps, the image first", Type.Array(ImageStep)) },
    errors: ["not_found"],
    handle: async ({ principal, params, query: { limit = LIMIT_DEFAULT, offset = 0 } }) => {
      const steps = await surface.service.images.lineage(principal, params["uuid"] as ImageId, { limit, offset });
      return json(200, steps.map(stepOf));
    },
  });
}

function childrenRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/images/:uuid/children",
    scope: "images:read",
    id: "imageChildren",
    tag: "Images",
    summary: "List the images that were made from an image, the oldest first",
    query: ChildrenQuery,
    responses: { 200: jsonSpec("a page of steps; a parent comes before its children", Type.Array(ImageStep)) },
    errors: ["not_found"],
    handle: async ({ principal, params, query: { limit = LIMIT_DEFAULT, offset = 0, recursive = false } }) => {
      const page = { limit, offset, recursive };
      const steps = await surface.service.images.children(principal, params["uuid"] as ImageId, page);
      return json(200, steps.map(stepOf));
    },
  });
}

function diffRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/images/:uuid/diff",
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
      const id = params["uuid"] as ImageId;
      const { against, found, next } = await surface.service.images.diff(principal, {
        id,
        against: query.against === undefined ? null : (query.against.toLowerCase() as ImageId),
        after: cursorPath(query.cursor),
        limit: query.limit ?? LIMIT_DEFAULT,
        signal: request.signal,
      });
      return json(200, {
        uuid: id,
        ...(against === null ? {} : { against }),
        items: found.map(diffItem),
        ...(next === null ? {} : { next: byteStringToBytes(next).toString("base64url") }),
      });
    },
  });
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

function detailsOf(image: StoredDetails): ImageDetails {
  const { parentId, sizeBytes, digest } = image;
  return {
    ...imageOf(image),
    ...(parentId === null ? {} : { parent: parentId }),
    size_bytes: sizeBytes,
    ...(digest === null ? {} : { digest }),
  };
}

function stepOf(row: StoredStep): ImageStep {
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
