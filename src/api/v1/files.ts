import type { Static } from "@sinclair/typebox";
import { Elysia, status } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import { isoTime } from "../../domain/ids.ts";
import type { Principal } from "../../service/parts.ts";
import { announcedLength, bodyStream } from "../body/body.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { FileResponse, UploadedFile } from "./schema/files.ts";
import { FilesQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

const UPLOAD = {
  ...about({
    id: "uploadFile",
    tag: "Files",
    summary: "Upload a file; the body is its raw bytes",
    responses: {
      201: jsonSpec("the file is stored; the same content has the same uuid", UploadedFile),
    },
    errors: ["payload_too_large", "insufficient_storage", "too_many_requests"],
  }),
};

const LOOK_UP = {
  query: checked(FilesQuery),
  ...about({
    id: "getFile",
    tag: "Files",
    summary: "Find a file by its uuid or its hash",
    responses: { 200: jsonSpec("the file", FileResponse) },
    errors: ["not_found"],
  }),
};

const EXISTS = {
  query: checked(FilesQuery),
  ...about({
    id: "fileExists",
    tag: "Files",
    summary: "Check whether a file exists",
    responses: { 200: { description: "the file exists" } },
    errors: ["not_found"],
  }),
};

export function fileRoutes(surface: Surface) {
  return new Elysia({ prefix: "/files" })
    .use(surface.access)
    .post(
      "",
      async ({ request, principal }) => {
        const upload = { announcedBytes: announcedLength(request), content: bodyStream(request) };
        const { id, sha256 } = await surface.service.files.upload(principal, upload);
        return status(201, { uuid: id, sha256 });
      },
      { receives: "files:write", ...UPLOAD },
    )
    .get("", ({ principal, query }) => lookUp(surface, principal, query), { reads: "files:read", ...LOOK_UP })
    .head("", ({ principal, query }) => lookUp(surface, principal, query), { reads: "files:read", ...EXISTS });
}

function lookUp({ service }: Surface, principal: Principal, query: Static<typeof FilesQuery>): FileResponse {
  if (query.uuid === undefined && query.sha256 === undefined) {
    throw new ApiError("validation_error", "uuid or sha256 is required", { field: "uuid" });
  }
  const { id, sha256, sizeBytes, createdAt } = service.files.get(principal, query);
  return { uuid: id, sha256, size_bytes: sizeBytes, created_at: isoTime(createdAt) };
}
