import { Type } from "@sinclair/typebox";
import { getFile } from "../db/files.ts";
import { type ImageRow, listImagesFar, removeTag, setTag } from "../db/images.ts";
import { ApiError } from "../domain/errors.ts";
import type { FileId, ImageId } from "../domain/ids.ts";
import { IMPORT_TIMEOUT_SECONDS_DEFAULT, Image, ImportRequest, LoadRequest, SetTagRequest } from "../domain/image.ts";
import { LIMIT_DEFAULT } from "../domain/listing.ts";
import { ImagesQuery } from "../domain/query.ts";
import { parseRegistryReference } from "../domain/registry-reference.ts";
import { timeBounds } from "../domain/time-bound.ts";
import { imageOf, noSuchImage } from "./image-access.ts";
import { json, type Reply } from "./reply.ts";
import { jsonSpec, OPERATION_LOCATION, operationLocation } from "./responses.ts";
import { type Route, route } from "./route.ts";
import type { ApiServices } from "./services.ts";
import { AcceptedOperation } from "./wire.ts";

export function imageRoutes(services: ApiServices): Route[] {
  return [
    listRoute(services),
    importRoute(services),
    loadRoute(services),
    setTagRoute(services),
    removeTagRoute(services),
  ];
}

function listRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/images",
    scope: "images:read",
    id: "listImages",
    tag: "Images",
    summary: "List images, the newest first",
    query: ImagesQuery,
    responses: { 200: jsonSpec("a page of images", Type.Array(Image)) },
    handle: async ({ principal, query }) => {
      const rows = await listImagesFar(services.db, principal.accountId, {
        limit: query.limit ?? LIMIT_DEFAULT,
        offset: query.offset ?? 0,
        tagged: query.tagged,
        tagPrefix: query.tag,
        ...timeBounds(query, services.clock()),
      });
      return json(200, rows.map(imageOf));
    },
  });
}

function importRoute(services: ApiServices): Route {
  return route({
    method: "POST",
    path: "/v1/images/import",
    scope: "images:import",
    id: "importImage",
    tag: "Images",
    summary: "Import the file system of an OCI image from a registry",
    body: ImportRequest,
    responses: { 202: jsonSpec("the import is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["too_many_requests", "unavailable"],
    handle: async ({ principal, body }) => {
      const reference = parseRegistryReference(body.registry, { defaultRegistry: services.defaultRegistry });
      const { id } = await services.operations.submitImport(principal.accountId, {
        source: { kind: "registry", reference: reference.canonical },
        credentials: body.credentials ?? null,
        tag: body.tag ?? null,
        timeoutSeconds: body.timeout ?? IMPORT_TIMEOUT_SECONDS_DEFAULT,
      });
      return json(202, { uuid: id }, { location: operationLocation(services, id) });
    },
  });
}

function loadRoute(services: ApiServices): Route {
  return route({
    method: "POST",
    path: "/v1/images/load",
    scope: "images:import",
    id: "loadImage",
    tag: "Images",
    summary: "Import the file system of an image from an archive that was uploaded as a file",
    body: LoadRequest,
    responses: { 202: jsonSpec("the import is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["not_found", "too_many_requests", "unavailable", "insufficient_storage"],
    handle: async ({ principal, body }) => {
      const fileId = body.file.toLowerCase() as FileId;
      const file = getFile(services.db, principal.accountId, { uuid: fileId });
      if (file === null) throw new ApiError("not_found", "no such file", { field: "file", uuid: fileId });
      const { id } = await services.operations.submitImport(principal.accountId, {
        source: { kind: "archive", fileId, sha256: file.sha256 },
        credentials: null,
        tag: body.tag ?? null,
        timeoutSeconds: body.timeout ?? IMPORT_TIMEOUT_SECONDS_DEFAULT,
      });
      return json(202, { uuid: id }, { location: operationLocation(services, id) });
    },
  });
}

function setTagRoute(services: ApiServices): Route {
  return route({
    method: "PATCH",
    path: "/v1/images/:uuid/tag",
    scope: "images:tag",
    id: "setImageTag",
    tag: "Images",
    summary: "Give an image a tag; an image that had the tag loses it",
    body: SetTagRequest,
    responses: { 200: jsonSpec("the image with its new tag", Image) },
    errors: ["not_found"],
    handle: ({ principal, params, body }) =>
      imageReply(params["uuid"], setTag(services.db, principal.accountId, params["uuid"] as ImageId, body.tag)),
  });
}

function removeTagRoute(services: ApiServices): Route {
  return route({
    method: "DELETE",
    path: "/v1/images/:uuid/tag",
    scope: "images:tag",
    id: "removeImageTag",
    tag: "Images",
    summary: "Take the tag of an image away",
    responses: { 200: jsonSpec("the image without a tag", Image) },
    errors: ["not_found"],
    handle: ({ principal, params }) =>
      imageReply(params["uuid"], removeTag(services.db, principal.accountId, params["uuid"] as ImageId)),
  });
}

function imageReply(id: string | undefined, row: ImageRow | null): Reply {
  if (row === null) throw noSuchImage(id ?? "");
  return json(200, imageOf(row));
}
