import { resolveImage } from "../db/images.ts";
import { ApiError } from "../domain/errors.ts";
import { type GuestPath, parseGuestPath } from "../domain/guest-path.ts";
import { Image, parseImageReference } from "../domain/image.ts";
import { ExistsQuery, InspectByTagQuery } from "../domain/query.ts";
import { archiveRoute } from "./archive.ts";
import { downloadRoute } from "./download.ts";
import { grepRoute } from "./grep.ts";
import { heldTreeOf, imageOf, requireImage } from "./image-access.ts";
import { listDirectoryRoute } from "./list-directory.ts";
import { empty, json } from "./reply.ts";
import { jsonSpec, locationOf } from "./responses.ts";
import { alias, type Route, route } from "./route.ts";
import type { ApiServices } from "./services.ts";

export function inspectRoutes(services: ApiServices): Route[] {
  const byTag = byTagRoute(services);
  const metadata = metadataRoute(services);
  const exists = existsRoute(services);
  return [
    byTag,
    alias(byTag, "/v1/inspect"),
    metadata,
    alias(metadata, "/v1/inspect/:uuid"),
    exists,
    alias(exists, "/v1/inspect/:uuid"),
    listDirectoryRoute(services),
    downloadRoute(services),
    archiveRoute(services),
    grepRoute(services),
  ];
}

function byTagRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/inspect/",
    scope: "images:read",
    id: "inspectByTag",
    tag: "Inspection",
    summary: "Find an image by its tag",
    query: InspectByTagQuery,
    responses: { 302: { description: "the image is there", headers: { Location: "address of the image's metadata" } } },
    errors: ["not_found"],
    handle: ({ principal, query }) => {
      const image = resolveImage(services.db, principal.accountId, parseImageReference(`tag:${query.tag}`));
      if (image === null) throw new ApiError("not_found", "no image has this tag", { tag: query.tag });
      return empty(302, { location: locationOf(services, `/v1/inspect/${image.id}/`) });
    },
  });
}

function metadataRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/inspect/:uuid/",
    scope: "images:read",
    id: "inspectImage",
    tag: "Inspection",
    summary: "Read an image's metadata",
    responses: { 200: jsonSpec("the image", Image) },
    errors: ["not_found"],
    handle: ({ principal, params }) => json(200, imageOf(requireImage(services, principal, params["uuid"] ?? ""))),
  });
}

function existsRoute(services: ApiServices): Route {
  return route({
    method: "HEAD",
    path: "/v1/inspect/:uuid/",
    scope: "images:read",
    id: "pathExists",
    tag: "Inspection",
    summary: "Ask whether an image, or a path in it, exists",
    query: ExistsQuery,
    responses: { 200: { description: "it exists" } },
    errors: ["not_found", "invalid_path"],
    handle: async ({ request, principal, params, query }) => {
      const path: GuestPath | null = query.path === undefined ? null : parseGuestPath(query.path);
      const image = requireImage(services, principal, params["uuid"] ?? "");
      if (path !== null) {
        const { tree, held } = heldTreeOf(services, image, request.signal);
        using _held = held;
        await tree.stat(path, { follow: true });
      }
      // What GET answers, which knows no path: the header fields of both are the same, and HEAD drops the body.
      return json(200, imageOf(image));
    },
  });
}
