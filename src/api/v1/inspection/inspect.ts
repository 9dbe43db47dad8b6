import { Elysia } from "elysia";
import type { ImageId } from "../../../domain/ids.ts";
import { type ByteString, parseGuestPath } from "../../../domain/tree/guest-path.ts";
import type { Principal } from "../../../service/parts.ts";
import { empty, respond } from "../../reply.ts";
import { about, checked, jsonSpec, unlisted } from "../../route.ts";
import { imageOf } from "../image-wire.ts";
import { Image } from "../schema/images.ts";
import { ExistsQuery, InspectByTagQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";
import { archiveRoutes } from "./archive.ts";
import { downloadRoutes } from "./download.ts";
import { findRoutes } from "./find.ts";
import { grepRoutes } from "./grep.ts";
import { listDirectoryRoutes } from "./list-directory.ts";
import { pathHistoryRoutes } from "./path-history.ts";

const BY_TAG = {
  query: checked(InspectByTagQuery),
  ...about({
    id: "inspectByTag",
    tag: "Inspection",
    summary: "Find an image by its tag",
    responses: { 302: { description: "the image exists", headers: { Location: "address of the image's metadata" } } },
    errors: ["not_found"],
  }),
};

const METADATA = {
  ...about({
    id: "inspectImage",
    tag: "Inspection",
    summary: "Read an image's metadata",
    responses: { 200: jsonSpec("the image", Image) },
    errors: ["not_found"],
  }),
};

const EXISTS = {
  query: checked(ExistsQuery),
  ...about({
    id: "pathExists",
    tag: "Inspection",
    summary: "Check whether an image, or a path in it, exists",
    responses: { 200: { description: "it exists" } },
    errors: ["not_found", "invalid_path"],
  }),
};

export function inspectRoutes(surface: Surface) {
  const { inspect } = surface.service;
  const byTag = (request: Request, principal: Principal, tag: string): Response => {
    const { id } = inspect.byTag(principal, tag);
    return respond(empty(302, { location: `${surface.address}/inspect/${id}/` }), request);
  };
  const metadata = (principal: Principal, id: string): Image => imageOf(inspect.image(principal, id as ImageId));
  // HEAD answers as GET without a path does: the headers are the same, and HEAD drops the body.
  const exists = async ({ signal }: Request, principal: Principal, id: string, path?: ByteString): Promise<Image> => {
    if (path === undefined) return metadata(principal, id);
    const target = { id: id as ImageId, path: parseGuestPath(path), signal };
    return imageOf(await inspect.withPath(principal, target));
  };
  return new Elysia({ prefix: "/inspect" })
    .use(surface.access)
    .get("/", ({ request, principal, query }) => byTag(request, principal, query.tag), {
      reads: "images:read",
      ...BY_TAG,
    })
    .get("", ({ request, principal, query }) => byTag(request, principal, query.tag), {
      reads: "images:read",
      ...unlisted(BY_TAG),
    })
    .get("/:uuid/", ({ principal, params }) => metadata(principal, params.uuid), { reads: "images:read", ...METADATA })
    .get("/:uuid", ({ principal, params }) => metadata(principal, params.uuid), {
      reads: "images:read",
      ...unlisted(METADATA),
    })
    .head("/:uuid/", ({ request, principal, params, query }) => exists(request, principal, params.uuid, query.path), {
      reads: "images:read",
      ...EXISTS,
    })
    .head("/:uuid", ({ request, principal, params, query }) => exists(request, principal, params.uuid, query.path), {
      reads: "images:read",
      ...unlisted(EXISTS),
    })
    .use(listDirectoryRoutes(surface))
    .use(downloadRoutes(surface))
    .use(archiveRoutes(surface))
    .use(findRoutes(surface))
    .use(pathHistoryRoutes(surface))
    .use(grepRoutes(surface));
}
