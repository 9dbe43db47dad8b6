import { isUtf8 } from "node:buffer";
import { type GrepMatch, GrepResult } from "../../domain/grep.ts";
import { type GuestPath, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import { LIMIT_DEFAULT } from "../../domain/listing.ts";
import { GrepQuery } from "../../domain/query.ts";
import type { FoundLine } from "../../service/inspect.ts";
import { jsonPieces, mapped } from "../json-stream.ts";
import { JSON_TYPE } from "../reply.ts";
import { jsonSpec } from "../responses.ts";
import { type Route, route } from "../route.ts";
import { streamed } from "../stream.ts";
import { pathFields } from "./image-wire.ts";
import type { Surface } from "./surface.ts";

export function grepRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/inspect/:uuid/grep",
    scope: "images:read",
    id: "grepTree",
    tag: "Inspection",
    summary: "Find lines in the files of a directory, or of one file; binary files are passed over",
    query: GrepQuery,
    responses: { 200: jsonSpec("what was found, and whether all was seen", GrepResult) },
    errors: ["not_found", "invalid_path", "too_many_requests", "unavailable"],
    handle: async ({ request, principal, params, query }) => {
      const path = query.path === undefined ? ("/" as GuestPath) : parseGuestPath(query.path);
      const { pattern, glob = null, limit = LIMIT_DEFAULT } = query;
      const search = { id: params["uuid"] as ImageId, path, pattern, glob, limit, signal: request.signal };
      const { found, bounds, fileCount, bytes } = await surface.service.inspect.grep(principal, search);
      const pieces = jsonPieces({
        matches: mapped(found, matchOf),
        truncated: bounds.length > 0,
        truncated_by: bounds,
        files_searched: fileCount,
        bytes_searched: bytes,
      });
      return streamed(JSON_TYPE, pieces);
    },
  });
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
