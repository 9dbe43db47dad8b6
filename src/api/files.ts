import { type FileRow, getFile, upsertFile } from "../db/files.ts";
import { ApiError } from "../domain/errors.ts";
import { FileResponse, UploadedFile } from "../domain/file.ts";
import { type FileId, isoTime } from "../domain/ids.ts";
import { FilesQuery } from "../domain/query.ts";
import { receiveBlob } from "../storage/blobs.ts";
import { whileSpace } from "../storage/space.ts";
import { checkAnnouncedLength } from "./body.ts";
import { json } from "./reply.ts";
import { jsonSpec } from "./responses.ts";
import { type QueryOf, RAW_BODY, type Route, route } from "./route.ts";
import type { ApiServices, Principal } from "./services.ts";

export function fileRoutes(services: ApiServices): Route[] {
  return [uploadRoute(services), lookUpRoute(services), existsRoute(services)];
}

function uploadRoute(services: ApiServices): Route {
  return route({
    method: "POST",
    path: "/v1/files",
    scope: "files:write",
    id: "uploadFile",
    tag: "Files",
    summary: "Upload a file; the body is its raw bytes",
    body: RAW_BODY,
    bodyBytesMax: services.limits.fileBytesMax,
    responses: {
      201: jsonSpec("the file is kept; the same content has the same uuid", UploadedFile),
    },
    errors: ["payload_too_large", "insufficient_storage"],
    handle: async ({ request, principal, body }) => {
      const { layout, limits } = services;
      checkAnnouncedLength(request, limits.fileBytesMax);
      const { accountId } = principal;
      const content = whileSpace(body, layout.root, limits.diskReserveBytes);
      const row = await receiveBlob(layout, content, limits.fileBytesMax, (blob) =>
        upsertFile(services.db, { accountId, ...blob, now: services.clock() }),
      );
      return json(201, { uuid: row.id, sha256: row.sha256 });
    },
  });
}

function lookUpRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/files",
    scope: "files:read",
    id: "getFile",
    tag: "Files",
    summary: "Look a file up by its uuid or its hash",
    query: FilesQuery,
    responses: { 200: jsonSpec("the file", FileResponse) },
    errors: ["not_found"],
    handle: ({ principal, query }) => json(200, fileOf(requireFile(services, principal, query))),
  });
}

function existsRoute(services: ApiServices): Route {
  return route({
    method: "HEAD",
    path: "/v1/files",
    scope: "files:read",
    id: "fileExists",
    tag: "Files",
    summary: "Ask whether a file exists",
    query: FilesQuery,
    responses: { 200: { description: "the file exists" } },
    errors: ["not_found"],
    // What GET answers: the header fields of both are the same, and HEAD drops the body.
    handle: ({ principal, query }) => json(200, fileOf(requireFile(services, principal, query))),
  });
}

function requireFile(services: ApiServices, principal: Principal, query: QueryOf<typeof FilesQuery>): FileRow {
  if (query.uuid === undefined && query.sha256 === undefined) {
    throw new ApiError("validation_error", "uuid or sha256 is required", { field: "uuid" });
  }
  const uuid = query.uuid?.toLowerCase() as FileId | undefined;
  const row = getFile(services.db, principal.accountId, { uuid, sha256: query.sha256 });
  if (row === null) throw new ApiError("not_found", "no such file", { ...query });
  return row;
}

function fileOf(row: FileRow): FileResponse {
  return { uuid: row.id, sha256: row.sha256, size_bytes: row.sizeBytes, created_at: isoTime(row.createdAt) };
}
