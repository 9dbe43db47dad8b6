import { Type } from "@sinclair/typebox";
import { displayName, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import { DirectoryListing } from "../../domain/listing.ts";
import { listingItem, listingLine } from "../../domain/listing-format.ts";
import { ListQuery } from "../../domain/query.ts";
import { jsonPieces, mapped } from "../json-stream.ts";
import { JSON_TYPE, TEXT_TYPE } from "../reply.ts";
import { type Route, route } from "../route.ts";
import { streamed } from "../stream.ts";
import type { Surface } from "./surface.ts";

export function listDirectoryRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/inspect/:uuid/list",
    scope: "images:read",
    id: "listDirectory",
    tag: "Inspection",
    summary: "List a directory of an image",
    query: ListQuery,
    responses: {
      200: {
        description: "the entries; with text=true one line an entry: mode, links, uid, gid, size, time, name",
        content: { "application/json": DirectoryListing, "text/plain": Type.String() },
      },
    },
    errors: ["not_found", "invalid_path"],
    handle: async ({ request, principal, params, query }) => {
      const path = parseGuestPath(query.path);
      const wanted = { id: params["uuid"] as ImageId, path, signal: request.signal };
      const { entries, held } = await surface.service.inspect.list(principal, wanted);
      return query.text === true
        ? streamed(TEXT_TYPE, mapped(entries, listingLine), held)
        : streamed(JSON_TYPE, jsonPieces({ path: displayName(path), items: mapped(entries, listingItem) }), held);
    },
  });
}
