import { Elysia } from "elysia";
import type { ImageId } from "../../../domain/ids.ts";
import { type GuestPath, parseGuestPath } from "../../../domain/tree/guest-path.ts";
import { LIMIT_DEFAULT } from "../../../domain/tree/listing.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { pathFields } from "../image-wire.ts";
import { FoundEntries } from "../schema/inspection.ts";
import { FindQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";
import { TYPE_NAMES } from "./listing-format.ts";

const FIND = {
  query: checked(FindQuery),
  ...about({
    id: "findEntries",
    tag: "Inspection",
    summary: "Find files and directories of an image by their names",
    responses: { 200: jsonSpec("the entries, and whether the search was complete", FoundEntries) },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

export function findRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" }).use(surface.access).get(
    "/find",
    async ({ request, principal, params, query: { glob, path, limit = LIMIT_DEFAULT } }) => {
      const below = path === undefined ? ("/" as GuestPath) : parseGuestPath(path);
      const search = { id: params.uuid as ImageId, path: below, glob, limit, signal: request.signal };
      const { paths, isComplete } = await surface.service.inspect.find(principal, search);
      const items = paths.map(({ path: at, entry }) => ({
        ...pathFields(at),
        type: TYPE_NAMES[entry.type],
        size: entry.size,
      }));
      return { items, truncated: !isComplete };
    },
    { reads: "images:read", ...FIND },
  );
}
