import { Elysia } from "elysia";
import type { ImageId } from "../../domain/ids.ts";
import { IMPORT_TIMEOUT_SECONDS_MAX } from "../../domain/image.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import type { ImportImage } from "../../service/images.ts";
import { mapped } from "../output/json-stream.ts";
import { json, respond } from "../reply.ts";
import { about, checked, jsonSpec, OPERATION_LOCATION } from "../route.ts";
import { imageOf } from "./image-wire.ts";
import { pageOf, pageReply } from "./page.ts";
import {
  AcceptedImport,
  IMAGE_KINDS,
  Image,
  ImageList,
  ImagesQuery,
  ImportRequest,
  RemoveTagQuery,
  SetTagRequest,
} from "./schema/images.ts";
import { type ContreeSurface, operationLocation } from "./surface.ts";

const LIST = {
  query: checked(ImagesQuery),
  ...about({
    id: "contreeListImages",
    tag: "ConTree",
    summary: "List images, the newest first, once for each of their tags",
    responses: { 200: jsonSpec("a page of images", ImageList) },
    errors: ["too_many_requests"],
  }),
};

const IMPORT = {
  body: checked(ImportRequest),
  ...about({
    id: "contreeImportImage",
    tag: "ConTree",
    summary: "Import the file system and the variables of an image; an image that exists already is the result",
    responses: { 201: jsonSpec("the import is queued", AcceptedImport, OPERATION_LOCATION) },
    errors: ["too_many_requests", "unavailable", "insufficient_storage"],
  }),
};

const SET_TAG = {
  body: checked(SetTagRequest),
  ...about({
    id: "contreeSetImageTag",
    tag: "ConTree",
    summary: "Give an image one more tag; another image that has the tag loses it",
    responses: { 200: jsonSpec("the image with the tag that was set", Image) },
    errors: ["not_found", "conflict"],
  }),
};

const REMOVE_TAG = {
  query: checked(RemoveTagQuery),
  ...about({
    id: "contreeRemoveImageTag",
    tag: "ConTree",
    summary: "Remove one tag of an image, or all of them",
    responses: { 200: jsonSpec("the image, with a tag that it still has", Image) },
    errors: ["not_found"],
  }),
};

export function imageRoutes(surface: ContreeSurface) {
  const { images } = surface.service;
  return new Elysia({ prefix: "/images" })
    .use(surface.access)
    .get(
      "",
      async ({ request, principal, query: { tagged, tag, uuid, kind, ...page } }) => {
        const rows = await images.list(principal, {
          ...pageOf(page),
          signal: request.signal,
          perTag: true,
          tagged: tagged === true ? true : undefined,
          tagPrefix: tag,
          id: uuid?.toLowerCase() as ImageId | undefined,
          origin: kind === undefined ? undefined : IMAGE_KINDS[kind],
        });
        return respond(await pageReply({ images: mapped(rows, imageOf) }), request) as never;
      },
      { reads: "images:read", ...LIST },
    )
    .post(
      "/import",
      async ({ request, principal, body }) => {
        const id = await images.import(principal, importOf(body));
        return respond(json(201, { uuid: id }, operationLocation(surface, id)), request) as never;
      },
      { takes: { scope: KIND_FACTS.image_import.scope }, ...IMPORT },
    )
    .patch(
      "/:uuid/tag",
      ({ principal, params, body }) => imageOf(images.addTag(principal, params.uuid as ImageId, body.tag)),
      { takes: { scope: "images:tag" }, ...SET_TAG },
    )
    .delete(
      "/:uuid/tag",
      ({ principal, params, query }) => imageOf(images.removeTags(principal, params.uuid as ImageId, query.tag)),
      { writes: "images:tag", ...REMOVE_TAG },
    );
}

/** Clients send empty credentials instead of none, and time-outs beyond the longest one. */
function importOf({ registry: { url, credentials }, tag, timeout }: ImportRequest): ImportImage {
  const username = credentials?.username ?? "";
  const password = credentials?.password ?? "";
  return {
    source: { kind: "registry", reference: url },
    credentials: username === "" && password === "" ? undefined : { username, password },
    tag: tag ?? undefined,
    timeoutSeconds: typeof timeout === "number" ? Math.min(timeout, IMPORT_TIMEOUT_SECONDS_MAX) : undefined,
    reuse: true,
    keepTags: true,
  };
}
