import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { FileId, ImageId } from "../../domain/ids.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import { LIMIT_DEFAULT } from "../../domain/tree/listing.ts";
import { about, checked, jsonSpec, OPERATION_LOCATION } from "../route.ts";
import { imageOf } from "./image-wire.ts";
import { Image, ImportRequest, LoadRequest, SetTagRequest } from "./schema/images.ts";
import { AcceptedOperation } from "./schema/operations.ts";
import { ImagesQuery } from "./schema/query.ts";
import { accepted, type Surface } from "./surface.ts";

const LIST = {
  query: checked(ImagesQuery),
  ...about({
    id: "listImages",
    tag: "Images",
    summary: "List images, the newest first",
    responses: { 200: jsonSpec("a page of images", Type.Array(Image)) },
    errors: ["too_many_requests"],
  }),
};

const IMPORT = {
  body: checked(ImportRequest),
  ...about({
    id: "importImage",
    tag: "Images",
    summary: "Import the file system of an OCI image from a registry",
    responses: { 202: jsonSpec("the import is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["too_many_requests", "unavailable"],
  }),
};

const LOAD = {
  body: checked(LoadRequest),
  ...about({
    id: "loadImage",
    tag: "Images",
    summary: "Import the file system of an image from an archive that is an uploaded file",
    responses: { 202: jsonSpec("the import is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["not_found", "too_many_requests", "unavailable", "insufficient_storage"],
  }),
};

const SET_TAG = {
  body: checked(SetTagRequest),
  ...about({
    id: "setImageTag",
    tag: "Images",
    summary: "Set the tag of an image; another image that has the tag loses it",
    responses: { 200: jsonSpec("the image with its new tag", Image) },
    errors: ["not_found"],
  }),
};

const REMOVE_TAG = {
  ...about({
    id: "removeImageTag",
    tag: "Images",
    summary: "Remove the tag of an image",
    responses: { 200: jsonSpec("the image without a tag", Image) },
    errors: ["not_found"],
  }),
};

export function imagesRoutes(surface: Surface) {
  return new Elysia({ prefix: "/images" })
    .use(surface.access)
    .get(
      "",
      async ({ request, principal, query: { tag, limit = LIMIT_DEFAULT, offset = 0, ...rest } }) => {
        const { signal } = request;
        const images = await surface.service.images.list(principal, { ...rest, limit, offset, tagPrefix: tag, signal });
        return images.map(imageOf);
      },
      { reads: "images:read", ...LIST },
    )
    .post(
      "/import",
      async ({ request, principal, body: { registry, credentials, tag, timeout } }) => {
        const source = { kind: "registry", reference: registry } as const;
        const image = { source, credentials, tag, timeoutSeconds: timeout };
        return accepted(surface, request, 202, await surface.service.images.import(principal, image));
      },
      { takes: { scope: KIND_FACTS.image_import.scope }, ...IMPORT },
    )
    .post(
      "/load",
      async ({ request, principal, body: { file, tag, timeout } }) => {
        const source = { kind: "archive", fileId: file.toLowerCase() as FileId } as const;
        return accepted(
          surface,
          request,
          202,
          await surface.service.images.import(principal, { source, tag, timeoutSeconds: timeout }),
        );
      },
      { takes: { scope: KIND_FACTS.image_import.scope }, ...LOAD },
    )
    .patch(
      "/:uuid/tag",
      ({ principal, params, body }) =>
        imageOf(surface.service.images.setTag(principal, params.uuid as ImageId, body.tag)),
      { takes: { scope: "images:tag" }, ...SET_TAG },
    )
    .delete(
      "/:uuid/tag",
      ({ principal, params }) => imageOf(surface.service.images.removeTags(principal, params.uuid as ImageId)),
      { writes: "images:tag", ...REMOVE_TAG },
    );
}
