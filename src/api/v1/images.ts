import { Type } from "@sinclair/typebox";
import type { FileId, ImageId } from "../../domain/ids.ts";
import { Image, ImportRequest, LoadRequest, SetTagRequest } from "../../domain/image.ts";
import { LIMIT_DEFAULT } from "../../domain/listing.ts";
import { ImagesQuery } from "../../domain/query.ts";
import { json } from "../reply.ts";
import { jsonSpec, OPERATION_LOCATION } from "../responses.ts";
import { type Route, route } from "../route.ts";
import { accepted } from "./accepted.ts";
import { imageOf } from "./image-wire.ts";
import type { Surface } from "./surface.ts";
import { AcceptedOperation } from "./wire.ts";

export function imagesRoutes(surface: Surface): Route[] {
  return [listRoute(surface), importRoute(surface), loadRoute(surface), setTagRoute(surface), removeTagRoute(surface)];
}

function listRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/images",
    scope: "images:read",
    id: "listImages",
    tag: "Images",
    summary: "List images, the newest first",
    query: ImagesQuery,
    responses: { 200: jsonSpec("a page of images", Type.Array(Image)) },
    handle: async ({ principal, query: { tag, limit = LIMIT_DEFAULT, offset = 0, ...rest } }) => {
      const images = await surface.service.images.list(principal, { ...rest, limit, offset, tagPrefix: tag });
      return json(200, images.map(imageOf));
    },
  });
}

function importRoute(surface: Surface): Route {
  return route({
    method: "POST",
    path: "/images/import",
    scope: "images:import",
    id: "importImage",
    tag: "Images",
    summary: "Import the file system of an OCI image from a registry",
    body: ImportRequest,
    responses: { 202: jsonSpec("the import is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["too_many_requests", "unavailable"],
    handle: async ({ principal, body: { registry, credentials, tag, timeout } }) => {
      const source = { kind: "registry", reference: registry } as const;
      const request = { source, credentials, tag, timeoutSeconds: timeout };
      return accepted(surface, 202, await surface.service.images.import(principal, request));
    },
  });
}

function loadRoute(surface: Surface): Route {
  return route({
    method: "POST",
    path: "/images/load",
    scope: "images:import",
    id: "loadImage",
    tag: "Images",
    summary: "Import the file system of an image from an archive that was uploaded as a file",
    body: LoadRequest,
    responses: { 202: jsonSpec("the import is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["not_found", "too_many_requests", "unavailable", "insufficient_storage"],
    handle: async ({ principal, body: { file, tag, timeout } }) => {
      const source = { kind: "archive", fileId: file.toLowerCase() as FileId } as const;
      return accepted(
        surface,
        202,
        await surface.service.images.import(principal, { source, tag, timeoutSeconds: timeout }),
      );
    },
  });
}

function setTagRoute(surface: Surface): Route {
  return route({
    method: "PATCH",
    path: "/images/:uuid/tag",
    scope: "images:tag",
    id: "setImageTag",
    tag: "Images",
    summary: "Give an image a tag; an image that had the tag loses it",
    body: SetTagRequest,
    responses: { 200: jsonSpec("the image with its new tag", Image) },
    errors: ["not_found"],
    handle: ({ principal, params, body }) =>
      json(200, imageOf(surface.service.images.setTag(principal, params["uuid"] as ImageId, body.tag))),
  });
}

function removeTagRoute(surface: Surface): Route {
  return route({
    method: "DELETE",
    path: "/images/:uuid/tag",
    scope: "images:tag",
    id: "removeImageTag",
    tag: "Images",
    summary: "Take the tag of an image away",
    responses: { 200: jsonSpec("the image without a tag", Image) },
    errors: ["not_found"],
    handle: ({ principal, params }) =>
      json(200, imageOf(surface.service.images.removeTag(principal, params["uuid"] as ImageId))),
  });
}
