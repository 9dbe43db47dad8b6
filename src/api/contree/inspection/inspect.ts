import { Elysia } from "elysia";
import type { ImageId } from "../../../domain/ids.ts";
import type { Principal } from "../../../service/parts.ts";
import { ARCHIVE_CONTENT } from "../../content/archive.ts";
import { FILE_CONTENT } from "../../content/download.ts";
import { archive, download } from "../../content/inspection.ts";
import { empty, respond } from "../../reply.ts";
import { about, checked, jsonSpec, unlisted } from "../../route.ts";
import { imageOf } from "../image-wire.ts";
import { Image } from "../schema/images.ts";
import { ArchiveQuery, DownloadQuery, InspectByTagQuery } from "../schema/inspection.ts";
import type { ContreeSurface } from "../surface.ts";
import { listDirectoryRoutes } from "./list-directory.ts";

const BY_TAG = {
  query: checked(InspectByTagQuery),
  ...about({
    id: "contreeInspectByTag",
    tag: "ConTree",
    summary: "Find an image by one of its tags",
    responses: { 302: { description: "the image exists", headers: { Location: "relative address of the image" } } },
    errors: ["not_found"],
  }),
};

const METADATA = {
  ...about({
    id: "contreeInspectImage",
    tag: "ConTree",
    summary: "Read an image's metadata",
    responses: { 200: jsonSpec("the image", Image) },
    errors: ["not_found"],
  }),
};

const DOWNLOAD = {
  query: checked(DownloadQuery),
  ...about({
    id: "contreeDownloadFile",
    tag: "ConTree",
    summary: "Download a file of an image, or one range of it",
    responses: {
      200: { description: "the file", content: FILE_CONTENT },
      206: { description: "the requested range", content: FILE_CONTENT },
      304: { description: "the client has the current content" },
    },
    errors: ["not_found", "invalid_path", "range_not_satisfiable", "too_many_requests"],
  }),
};

const ARCHIVE = {
  query: checked(ArchiveQuery),
  ...about({
    id: "contreeArchiveTree",
    tag: "ConTree",
    summary: "Download a directory, or one file, as a pax archive",
    responses: {
      200: {
        description: "the archive; the entries of a directory are named relative to it; sockets are left out",
        content: ARCHIVE_CONTENT,
        headers: {
          "Content-Encoding": "gzip, when the request accepts it",
          "Content-Disposition": "a file name, which is the path with _ for each /",
        },
      },
    },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

export function inspectRoutes(surface: ContreeSurface) {
  const { inspect } = surface.service;
  // Behind a proxy, clients use another address for the surface, so this one is relative to the path of the request.
  const byTag = (request: Request, principal: Principal, tag: string, base: "" | "inspect/"): Response => {
    const { id } = inspect.byTag(principal, tag);
    return respond(empty(302, { location: `${base}${id}/` }), request);
  };
  const metadata = (principal: Principal, id: string): Image => imageOf(inspect.image(principal, id as ImageId));
  return new Elysia({ prefix: "/inspect" })
    .use(surface.access)
    .get("/", ({ request, principal, query }) => byTag(request, principal, query.tag, ""), {
      reads: "images:read",
      ...BY_TAG,
    })
    .get("", ({ request, principal, query }) => byTag(request, principal, query.tag, "inspect/"), {
      reads: "images:read",
      ...unlisted(BY_TAG),
    })
    .get("/:uuid/", ({ principal, params }) => metadata(principal, params.uuid), { reads: "images:read", ...METADATA })
    .get("/:uuid", ({ principal, params }) => metadata(principal, params.uuid), {
      reads: "images:read",
      ...unlisted(METADATA),
    })
    .get("/:uuid/download", (asked) => download(inspect, asked), { reads: "images:read", ...DOWNLOAD })
    .get(
      "/:uuid/archive",
      (asked) => archive(inspect, asked, { contentOnly: true, nameOf: (_archive, path) => path.slice(1) }),
      { reads: "images:read", ...ARCHIVE },
    )
    .use(listDirectoryRoutes(surface));
}
