import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { displayName } from "../../../domain/tree/guest-path.ts";
import type { Entry, EntryType } from "../../../domain/tree/listing.ts";
import { listing } from "../../content/inspection.ts";
import { mappedItems } from "../../output/json-stream.ts";
import { about, checked } from "../../route.ts";
import { DirectoryList, type FileItem, ListQuery } from "../schema/inspection.ts";
import type { ContreeSurface } from "../surface.ts";

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
  return new Elysia({ prefix: "/:uuid" })
    .use(access)
    .get(
      "/list",
      (asked) =>
        listing(service.inspect, asked, (_path, entries, path) => ({ path, files: mappedItems(entries, fileItem) })),
      { reads: "images:read", ...LIST_DIRECTORY },
    );
}

/** Bits of `st_mode` with the type of an entry. */
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
