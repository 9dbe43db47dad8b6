import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { displayName, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import type { Entry, EntryType } from "../../domain/listing.ts";
import { listingLine } from "../content/listing-line.ts";
import { jsonPieces, mapped } from "../json-stream.ts";
import { JSON_TYPE, respond, TEXT_TYPE } from "../reply.ts";
import { about, checked } from "../route.ts";
import { streamed } from "../stream.ts";
import { DirectoryList, type FileItem, ListQuery } from "./schema/inspection.ts";
import type { ContreeSurface } from "./surface.ts";

const LIST_DIRECTORY = {
  query: checked(ListQuery),
  ...about({
    id: "contreeListDirectory",
    tag: "ConTree",
    summary: "List a directory of an image",
    responses: {
      200: {
        description: "the entries; with text a line for each: mode, links, uid, gid, size, time, name",
        content: { "application/json": DirectoryList, "text/plain": Type.String() },
      },
    },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

export function listDirectoryRoutes({ service, access }: ContreeSurface) {
  return new Elysia({ prefix: "/:uuid" }).use(access).get(
    "/list",
    async ({ request, principal, params, query: { path, text } }) => {
      const wanted = { id: params.uuid as ImageId, path: parseGuestPath(path), signal: request.signal };
      const { entries, held } = await service.inspect.list(principal, wanted);
      const reply = await (text === true
        ? streamed(TEXT_TYPE, mapped(entries, listingLine), held)
        : streamed(JSON_TYPE, jsonPieces({ path: displayName(path), files: mapped(entries, fileItem) }), held));
      return respond(reply, request);
    },
    { reads: "images:read", ...LIST_DIRECTORY },
  );
}

/** Bits of `st_mode` that tell the type of an entry. */
const TYPE_BITS = {
  f: 0o100_000,
  d: 0o040_000,
  l: 0o120_000,
  b: 0o060_000,
  c: 0o020_000,
  p: 0o010_000,
  s: 0o140_000,
} as const satisfies Record<EntryType, number>;

function fileItem({ name, type, mode, uid, gid, nlink, size, mtimeSeconds, target }: Entry): FileItem {
  return {
    path: displayName(name),
    size,
    owner: uid,
    group: gid,
    uid,
    gid,
    mode: TYPE_BITS[type] | mode,
    mtime: mtimeSeconds,
    nlink,
    is_dir: type === "d",
    is_regular: type === "f",
    is_symlink: type === "l",
    is_socket: type === "s",
    is_fifo: type === "p",
    symlink_to: displayName(target),
  };
}
