import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { displayName, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import { listingLine } from "../content/listing-line.ts";
import { jsonPieces, mapped } from "../json-stream.ts";
import { JSON_TYPE, respond, TEXT_TYPE } from "../reply.ts";
import { about, checked } from "../route.ts";
import { streamed } from "../stream.ts";
import { listingItem } from "./listing-format.ts";
import { DirectoryListing } from "./schema/inspection.ts";
import { ListQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

const LIST_DIRECTORY = {
  query: checked(ListQuery),
  ...about({
    id: "listDirectory",
    tag: "Inspection",
    summary: "List a directory of an image",
    responses: {
      200: {
        description: "the entries; with text=true a line for each: mode, links, uid, gid, size, time, name",
        content: { "application/json": DirectoryListing, "text/plain": Type.String() },
      },
    },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

export function listDirectoryRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" }).use(surface.access).get(
    "/list",
    async ({ request, principal, params, query }) => {
      const path = parseGuestPath(query.path);
      const wanted = { id: params.uuid as ImageId, path, signal: request.signal };
      const { entries, held } = await surface.service.inspect.list(principal, wanted);
      const reply = await (query.text === true
        ? streamed(TEXT_TYPE, mapped(entries, listingLine), held)
        : streamed(JSON_TYPE, jsonPieces({ path: displayName(path), items: mapped(entries, listingItem) }), held));
      return respond(reply, request);
    },
    { reads: "images:read", ...LIST_DIRECTORY },
  );
}
