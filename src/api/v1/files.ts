import { ApiError } from "../../domain/errors.ts";
import { FileResponse, UploadedFile } from "../../domain/file.ts";
import { isoTime } from "../../domain/ids.ts";
import { FilesQuery } from "../../domain/query.ts";
import type { Principal } from "../../service/parts.ts";
import { announcedLength } from "../body.ts";
import { json } from "../reply.ts";
import { jsonSpec } from "../responses.ts";
import { type QueryOf, RAW_BODY, type Route, route } from "../route.ts";
import type { Surface } from "./surface.ts";

export function fileRoutes(surface: Surface): Route[] {
  return [uploadRoute(surface), lookUpRoute(surface), existsRoute(surface)];
}

function uploadRoute(surface: Surface): Route {
  return route({
    method: "POST",
    path: "/files",
    scope: "files:write",
    id: "uploadFile",
    tag: "Files",
    summary: "Upload a file; the body is its raw bytes",
    body: RAW_BODY,
    responses: {
      201: jsonSpec("the file is kept; the same content has the same uuid", UploadedFile),
    },
    errors: ["payload_too_large", "insufficient_storage"],
    handle: async ({ request, principal, body }) => {
      const upload = { announcedBytes: announcedLength(request), content: body };
      const { id, sha256 } = await surface.service.files.upload(principal, upload);
      return json(201, { uuid: id, sha256 });
    },
  });
}

function lookUpRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/files",
    scope: "files:read",
    id: "getFile",
    tag: "Files",
    summary: "Look a file up by its uuid or its hash",
    query: FilesQuery,
    responses: { 200: jsonSpec("the file", FileResponse) },
    errors: ["not_found"],
    handle: ({ principal, query }) => json(200, lookUp(surface, principal, query)),
  });
}

function existsRoute(surface: Surface): Route {
  return route({
    method: "HEAD",
    path: "/files",
    scope: "files:read",
    id: "fileExists",
    tag: "Files",
    summary: "Ask whether a file exists",
    query: FilesQuery,
    responses: { 200: { description: "the file exists" } },
    errors: ["not_found"],
    // What GET answers: the header fields of both are the same, and HEAD drops the body.
    handle: ({ principal, query }) => json(200, lookUp(surface, principal, query)),
  });
}

function lookUp({ service }: Surface, principal: Principal, query: QueryOf<typeof FilesQuery>): FileResponse {
  if (query.uuid === undefined && query.sha256 === undefined) {
    throw new ApiError("validation_error", "uuid or sha256 is required", { field: "uuid" });
  }
  const { id, sha256, sizeBytes, createdAt } = service.files.get(principal, query);
  return { uuid: id, sha256, size_bytes: sizeBytes, created_at: isoTime(createdAt) };
}
