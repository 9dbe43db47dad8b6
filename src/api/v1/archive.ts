import { Elysia } from "elysia";
import { displayName, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import { ARCHIVE_CONTENT, archiveReply } from "../content/archive.ts";
import { respond } from "../reply.ts";
import { about, checked } from "../route.ts";
import { ArchiveQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

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
  return new Elysia({ prefix: "/:uuid" }).use(surface.access).get(
    "/archive",
    async ({ request, principal, params, query }) => {
      const wanted = { id: params.uuid as ImageId, path: parseGuestPath(query.path), signal: request.signal };
      const archive = await surface.service.inspect.archive(principal, wanted);
      return respond(archiveReply(archive, displayName(archive.name), request.headers), request);
    },
    { reads: "images:read", ...ARCHIVE },
  );
}
