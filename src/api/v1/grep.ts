import { isUtf8 } from "node:buffer";
import { Elysia } from "elysia";
import { type GuestPath, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import { LIMIT_DEFAULT } from "../../domain/listing.ts";
import type { FoundLine } from "../../service/inspect.ts";
import { jsonPieces, mapped } from "../json-stream.ts";
import { JSON_TYPE, respond } from "../reply.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { streamed } from "../stream.ts";
import { pathFields } from "./image-wire.ts";
import { type GrepMatch, GrepResult } from "./schema/inspection.ts";
import { GrepQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

const GREP = {
  query: checked(GrepQuery),
  ...about({
    id: "grepTree",
    tag: "Inspection",
    summary: "Search the lines of the files in a directory, or of one file; binary files are skipped",
    responses: { 200: jsonSpec("the matching lines, and whether the search was complete", GrepResult) },
    errors: ["not_found", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

export function grepRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" }).use(surface.access).get(
    "/grep",
    async ({ request, principal, params, query }) => {
      const path = query.path === undefined ? ("/" as GuestPath) : parseGuestPath(query.path);
      const { pattern, glob = null, limit = LIMIT_DEFAULT } = query;
      const search = { id: params.uuid as ImageId, path, pattern, glob, limit, signal: request.signal };
      const { found, bounds, fileCount, bytes } = await surface.service.inspect.grep(principal, search);
      const pieces = jsonPieces({
        matches: mapped(found, matchOf),
        truncated: bounds.length > 0,
        truncated_by: bounds,
        files_searched: fileCount,
        bytes_searched: bytes,
      });
      return respond(await streamed(JSON_TYPE, pieces), request);
    },
    { reads: "images:read", ...GREP },
  );
}

function matchOf({ path, line, bytes, isCut }: FoundLine): GrepMatch {
  const text = Buffer.from(bytes);
  return {
    ...pathFields(path),
    line,
    text: text.toString("utf8"),
    ...(isUtf8(text) ? {} : { text_base64: text.toString("base64") }),
    ...(isCut ? { text_truncated: true } : {}),
  };
}
