import { Type } from "@sinclair/typebox";
import { Elysia, status } from "elysia";
import { isoTime } from "../../domain/ids.ts";
import type { File as StoredFile } from "../../service/files.ts";
import { announcedLength, bodyStream } from "../body/body.ts";
import { mapped } from "../output/json-stream.ts";
import { json, respond } from "../reply.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { pageOf, pageReply } from "./page.ts";
import { File, FileList, FilesQuery, UploadedFile } from "./schema/files.ts";
import type { ContreeSurface } from "./surface.ts";

const UPLOAD = {
  ...about({
    id: "contreeUploadFile",
    tag: "ConTree",
    summary: "Upload a file; the body is its raw bytes",
    responses: { 201: jsonSpec("the file is stored; the same content has the same uuid", UploadedFile) },
    errors: ["payload_too_large", "insufficient_storage", "too_many_requests"],
  }),
};

const LIST = {
  query: checked(FilesQuery),
  ...about({
    id: "contreeListFiles",
    tag: "ConTree",
    summary: "List files, the last uploaded first, or find one",
    responses: { 200: jsonSpec("a page of files, or the one that the query names", Type.Union([FileList, File])) },
    errors: ["not_found", "too_many_requests"],
  }),
};

const GET = {
  ...about({
    id: "contreeGetFile",
    tag: "ConTree",
    summary: "Find a file by the hash of its content",
    responses: { 200: jsonSpec("the file", File) },
    errors: ["not_found"],
  }),
};

export function fileRoutes({ service: { files }, access }: ContreeSurface) {
  return new Elysia({ prefix: "/files" })
    .use(access)
    .post(
      "",
      async ({ request, principal }) => {
        const upload = { announcedBytes: announcedLength(request), content: bodyStream(request) };
        const { id, sha256, sizeBytes } = await files.upload(principal, upload);
        return status(201, { uuid: id, sha256, size: sizeBytes });
      },
      { receives: "files:write", ...UPLOAD },
    )
    .get(
      "",
      async ({ request, principal, query: { uuid, sha256, ...page } }) => {
        const isOne = uuid !== undefined || sha256 !== undefined;
        const reply = isOne
          ? json(200, fileOf(files.get(principal, { uuid, sha256: sha256?.toLowerCase() })))
          : await pageReply({
              files: mapped(await files.list(principal, { ...pageOf(page), signal: request.signal }), fileOf),
            });
        return respond(reply, request) as never;
      },
      { reads: "files:read", ...LIST },
    )
    .get("/:sha256", ({ principal, params }) => fileOf(files.get(principal, { sha256: params.sha256 })), {
      reads: "files:read",
      ...GET,
    });
}

/** The wire form of a file. */
function fileOf({ id, sha256, sizeBytes, createdAt, uploadedAt }: StoredFile): File {
  return {
    uuid: id,
    sha256,
    size: sizeBytes,
    created_at: isoTime(createdAt),
    updated_at: isoTime(uploadedAt),
  };
}
