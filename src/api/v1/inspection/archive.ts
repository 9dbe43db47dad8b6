import { Elysia } from "elysia";
import { displayName } from "../../../domain/tree/guest-path.ts";
import { ARCHIVE_CONTENT } from "../../content/archive.ts";
import { archive } from "../../content/inspection.ts";
import { about, checked } from "../../route.ts";
import { ArchiveQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";

const ARCHIVE = {
  query: checked(ArchiveQuery),
  ...about({
    id: "archiveTree",
    tag: "Inspection",
    summary:
      "Download a directory, or one file, as a pax archive with owners, modes, times, links, extended attributes and holes",
    responses: {
      200: {
        description: "the archive; the entries of a directory are named relative to it; sockets are left out",
        content: ARCHIVE_CONTENT,
        headers: {
          "Content-Encoding": "gzip, when the request accepts it",
          "Content-Disposition": "a name for the archive",
        },
      },
    },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

export function archiveRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" })
    .use(surface.access)
    .get(
      "/archive",
      (asked) =>
        archive(surface.service.inspect, asked, { contentOnly: false, nameOf: ({ name }) => displayName(name) }),
      { reads: "images:read", ...ARCHIVE },
    );
}
