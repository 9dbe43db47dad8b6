import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { listing } from "../../content/inspection.ts";
import { mappedItems } from "../../output/json-stream.ts";
import { NDJSON_TYPE } from "../../reply.ts";
import { about, checked } from "../../route.ts";
import { DirectoryListing } from "../schema/inspection.ts";
import { ListQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";
import { listingItem } from "./listing-format.ts";

const LIST_DIRECTORY = {
  query: checked(ListQuery),
  ...about({
    id: "listDirectory",
    tag: "Inspection",
    summary: "List a directory of an image",
    responses: {
      200: {
        description:
          "the entries; with text=true a line for each: mode, links, uid, gid, size, time, name; " +
          "with Accept: application/x-ndjson an object in each line, the last one of type `end`",
        content: {
          "application/json": DirectoryListing,
          "text/plain": Type.String(),
          [NDJSON_TYPE]: Type.String(),
        },
      },
    },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

export function listDirectoryRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" }).use(surface.access).get(
    "/list",
    (asked) =>
      listing(surface.service.inspect, asked, (path, entries) => ({
        path,
        items: mappedItems(entries, listingItem),
      })),
    { reads: "images:read", ...LIST_DIRECTORY },
  );
}
