import { Elysia } from "elysia";
import { FILE_CONTENT } from "../../content/download.ts";
import { download } from "../../content/inspection.ts";
import { about, checked } from "../../route.ts";
import { DownloadQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";

const CONTENT_HEADERS = {
  ETag: "strong entity tag of the content",
  "Accept-Ranges": "bytes",
  "Last-Modified": "modification time of the file",
};

const DOWNLOAD = {
  query: checked(DownloadQuery),
  ...about({
    id: "downloadFile",
    tag: "Inspection",
    summary: "Download a file of an image, or one range of it",
    responses: {
      200: { description: "the file", content: FILE_CONTENT, headers: CONTENT_HEADERS },
      206: {
        description: "the requested range",
        content: FILE_CONTENT,
        headers: { ...CONTENT_HEADERS, "Content-Range": "the range within the file" },
      },
      304: { description: "the client has the current content", headers: CONTENT_HEADERS },
    },
    errors: ["not_found", "invalid_path", "range_not_satisfiable", "too_many_requests"],
  }),
};

export function downloadRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" })
    .use(surface.access)
    .get("/download", (asked) => download(surface.service.inspect, asked), { reads: "images:read", ...DOWNLOAD });
}
