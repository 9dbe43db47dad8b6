import { Elysia } from "elysia";
import { fileResponses } from "../../content/download.ts";
import { download } from "../../content/inspection.ts";
import { about, checked } from "../../route.ts";
import { DownloadQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";

const DOWNLOAD = {
  query: checked(DownloadQuery),
  ...about({
    id: "downloadFile",
    tag: "Inspection",
    summary: "Download a file of an image, or one range of it",
    responses: fileResponses("strong entity tag of the content"),
    errors: ["not_found", "invalid_path", "range_not_satisfiable", "too_many_requests"],
  }),
};

export function downloadRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" })
    .use(surface.access)
    .get("/download", (asked) => download(surface.service.inspect, asked), { reads: "images:read", ...DOWNLOAD });
}
