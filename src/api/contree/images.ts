import { Elysia } from "elysia";
import type { ImageId } from "../../domain/ids.ts";
import { mapped } from "../json-stream.ts";
import { respond } from "../reply.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { imageOf } from "./image-wire.ts";
import { pageOf, pageReply } from "./page.ts";
import { IMAGE_KINDS, Image, ImageList, ImagesQuery, RemoveTagQuery, SetTagRequest } from "./schema/images.ts";
import type { ContreeSurface } from "./surface.ts";

const LIST = {
  query: checked(ImagesQuery),
  ...about({
    id: "contreeListImages",
    tag: "ConTree",
    summary: "List images, the newest first, once for each of their tags",
    responses: { 200: jsonSpec("a page of images", ImageList) },
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

export function imageRoutes({ service, access }: ContreeSurface) {
  const { images } = service;
  return new Elysia({ prefix: "/images" })
    .use(access)
    .get(
      "",
      async ({ request, principal, query: { tagged, tag, uuid, kind, ...page } }) => {
        const rows = await images.list(principal, {
          ...pageOf(page),
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
