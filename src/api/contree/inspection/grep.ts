import { Elysia } from "elysia";
import { GREP_TEXT_BYTES_MAX, type GrepLine } from "../../../domain/tree/grep.ts";
import { type ByteString, displayName } from "../../../domain/tree/guest-path.ts";
import { matches } from "../../content/inspection.ts";
import { mapped } from "../../output/json-stream.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { type GrepMatch, GrepQuery, GrepResult, TOTAL_DEFAULT } from "../schema/grep.ts";
import type { ContreeSurface } from "../surface.ts";

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
    (asked) => {
      const { path = [], pattern: patterns, max_total: limit = TOTAL_DEFAULT } = asked.query;
      return matches(service.inspect, asked, { limit, ranges: true }, ({ lines, bounds }) => ({
        path: displayName(path[0] ?? ("/" as ByteString)),
        patterns,
        truncated: bounds.length > 0,
        matches: mapped(lines, matchOf),
      }));
    },
    { reads: "images:read", ...GREP },
  );
}

function matchOf({ path, kind, line, offset, length, hasFeed, bytes, isCut, ranges }: GrepLine): GrepMatch {
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
