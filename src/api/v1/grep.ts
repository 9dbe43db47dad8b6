import { isUtf8 } from "node:buffer";
import { Elysia } from "elysia";
import type { FoundLine } from "../../domain/grep.ts";
import { type ByteString, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import { LIMIT_DEFAULT } from "../../domain/listing.ts";
import type { Search } from "../../service/inspect.ts";
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
      const hasDetails = query.details === true || (query.before ?? 0) > 0 || (query.after ?? 0) > 0;
      const search: Search = {
        id: params.uuid as ImageId,
        paths: (query.path ?? ["/" as ByteString]).map(parseGuestPath),
        patterns: query.pattern,
        matchCase: query.case ?? "sensitive",
        globs: query.glob ?? [],
        limit: query.limit ?? LIMIT_DEFAULT,
        fileLimit: query.max_count ?? null,
        before: query.before ?? 0,
        after: query.after ?? 0,
        ranges: hasDetails,
        signal: request.signal,
      };
      const { found, bounds, fileCount, bytes } = await surface.service.inspect.grep(principal, search);
      const pieces = jsonPieces({
        matches: mapped(found, hasDetails ? detailedMatchOf : matchOf),
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

function detailedMatchOf(found: FoundLine): GrepMatch {
  const { kind: type, offset, length, ranges } = found;
  return { ...matchOf(found), type, offset, length, ranges: [...ranges] };
}
