import { Elysia } from "elysia";
import { type FoundLine, GREP_TEXT_BYTES_MAX } from "../../domain/grep.ts";
import { type ByteString, displayName, parseGuestPath } from "../../domain/guest-path.ts";
import type { ImageId } from "../../domain/ids.ts";
import type { Search } from "../../service/inspect.ts";
import { jsonPieces, mapped } from "../json-stream.ts";
import { JSON_TYPE, respond } from "../reply.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { streamed } from "../stream.ts";
import { type GrepMatch, GrepQuery, GrepResult, TOTAL_DEFAULT } from "./schema/grep.ts";
import type { ContreeSurface } from "./surface.ts";

const GREP = {
  query: checked(GrepQuery),
  ...about({
    id: "contreeGrep",
    tag: "ConTree",
    summary: "Search the lines of the files of an image",
    responses: { 200: jsonSpec("the matching lines, and those around them", GrepResult) },
    errors: ["not_found", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

export function grepRoutes({ service, access }: ContreeSurface) {
  return new Elysia({ prefix: "/inspect/:uuid" }).use(access).get(
    "/grep",
    async ({ request, principal, params, query }) => {
      const { path: paths = ["/" as ByteString], pattern: patterns, before = 0, after = 0 } = query;
      const search: Search = {
        id: params.uuid as ImageId,
        paths: paths.map(parseGuestPath),
        patterns,
        matchCase: query.case ?? "sensitive",
        globs: query.glob ?? [],
        limit: query.max_total ?? TOTAL_DEFAULT,
        fileLimit: query.max_count ?? null,
        before,
        after,
        ranges: true,
        signal: request.signal,
      };
      const { found, bounds } = await service.inspect.grep(principal, search);
      const result = {
        path: displayName(paths[0] ?? ("/" as ByteString)),
        patterns,
        truncated: bounds.length > 0,
        matches: mapped(found, matchOf),
      };
      return respond(await streamed(JSON_TYPE, jsonPieces(result)), request);
    },
    { reads: "images:read", ...GREP },
  );
}

function matchOf({ path, kind, line, offset, length, hasFeed, bytes, isCut, ranges }: FoundLine): GrepMatch {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const hasEnd = hasFeed && !isCut && bytes.length < GREP_TEXT_BYTES_MAX;
  return {
    path: displayName(path),
    line_number: line,
    absolute_offset: offset,
    line_text: `${text.toString("utf8")}${hasEnd ? "\n" : ""}`,
    line_bytes: length + (hasFeed ? 1 : 0),
    submatches: ranges.map(({ start, end }) => ({ text: text.toString("utf8", start, end), start, end })),
    type: kind,
  };
}
