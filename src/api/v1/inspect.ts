import { parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import { Image } from "../../domain/image.ts";
import { ExistsQuery, InspectByTagQuery } from "../../domain/query.ts";
import { empty, json } from "../reply.ts";
import { jsonSpec } from "../responses.ts";
import { alias, type Route, route } from "../route.ts";
import { archiveRoute } from "./archive.ts";
import { downloadRoute } from "./download.ts";
import { grepRoute } from "./grep.ts";
import { imageOf } from "./image-wire.ts";
import { listDirectoryRoute } from "./list-directory.ts";
import type { Surface } from "./surface.ts";

export function inspectRoutes(surface: Surface): Route[] {
  const byTag = byTagRoute(surface);
  const metadata = metadataRoute(surface);
  const exists = existsRoute(surface);
  return [
    byTag,
    alias(byTag, "/inspect"),
    metadata,
    alias(metadata, "/inspect/:uuid"),
    exists,
    alias(exists, "/inspect/:uuid"),
    listDirectoryRoute(surface),
    downloadRoute(surface),
    archiveRoute(surface),
    grepRoute(surface),
  ];
}

function byTagRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/inspect/",
    scope: "images:read",
    id: "inspectByTag",
    tag: "Inspection",
    summary: "Find an image by its tag",
    query: InspectByTagQuery,
    responses: { 302: { description: "the image is there", headers: { Location: "address of the image's metadata" } } },
    errors: ["not_found"],
    handle: ({ principal, query }) => {
      const { id } = surface.service.inspect.byTag(principal, query.tag);
      return empty(302, { location: `${surface.address}/inspect/${id}/` });
    },
  });
}

function metadataRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/inspect/:uuid/",
    scope: "images:read",
    id: "inspectImage",
    tag: "Inspection",
    summary: "Read an image's metadata",
    responses: { 200: jsonSpec("the image", Image) },
    errors: ["not_found"],
    handle: ({ principal, params }) =>
      json(200, imageOf(surface.service.inspect.image(principal, params["uuid"] as ImageId))),
  });
}

function existsRoute(surface: Surface): Route {
  return route({
    method: "HEAD",
    path: "/inspect/:uuid/",
    scope: "images:read",
    id: "pathExists",
    tag: "Inspection",
    summary: "Ask whether an image, or a path in it, exists",
    query: ExistsQuery,
    responses: { 200: { description: "it exists" } },
    errors: ["not_found", "invalid_path"],
    handle: async ({ request, principal, params, query }) => {
      const { inspect } = surface.service;
      const id = params["uuid"] as ImageId;
      const { signal } = request;
      const image =
        query.path === undefined
          ? inspect.image(principal, id)
          : await inspect.withPath(principal, { id, path: parseGuestPath(query.path), signal });
      // What GET answers, which knows no path: the header fields of both are the same, and HEAD drops the body.
      return json(200, imageOf(image));
    },
  });
}
