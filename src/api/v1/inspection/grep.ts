import { isUtf8 } from "node:buffer";
import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { GrepLine } from "../../../domain/tree/grep.ts";
import { LIMIT_DEFAULT } from "../../../domain/tree/listing.ts";
import { matches } from "../../content/inspection.ts";
import { mapped } from "../../output/json-stream.ts";
import { NDJSON_TYPE } from "../../reply.ts";
import { about, checked } from "../../route.ts";
import { pathFields } from "../image-wire.ts";
import { type GrepMatch, GrepResult } from "../schema/inspection.ts";
import { GrepQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";

const GREP = {
  query: checked(GrepQuery),
  ...about({
    id: "grepTree",
    tag: "Inspection",
    summary: "Search the lines of the files in a directory, or of one file; binary files are skipped",
    responses: {
      200: {
        description:
          "the matching lines, and whether the search was complete; with Accept: application/x-ndjson an object in each " +
          "line, the last one of type `end`",
        content: { "application/json": GrepResult, [NDJSON_TYPE]: Type.String() },
      },
    },
    errors: ["not_found", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

export function grepRoutes(surface: Surface) {
  return new Elysia({ prefix: "/:uuid" }).use(surface.access).get(
    "/grep",
    (asked) => {
      const { query } = asked;
      const ranges = query.details === true || (query.before ?? 0) > 0 || (query.after ?? 0) > 0;
      const limits = { limit: query.limit ?? LIMIT_DEFAULT, ranges };
      return matches(surface.service.inspect, asked, limits, ({ lines, bounds, fileCount, bytes }) => ({
        matches: mapped(lines, ranges ? detailedMatchOf : matchOf),
        truncated: bounds.length > 0,
        truncated_by: bounds,
        files_searched: fileCount,
        bytes_searched: bytes,
      }));
    },
    { reads: "images:read", ...GREP },
  );
}

function matchOf({ path, line, bytes, isCut }: GrepLine): GrepMatch {
  const text = Buffer.from(bytes);
  return {
    ...pathFields(path),
    line,
    text: text.toString("utf8"),
    ...(isUtf8(text) ? {} : { text_base64: text.toString("base64") }),
    ...(isCut ? { text_truncated: true } : {}),
  };
}

function detailedMatchOf(match: GrepLine): GrepMatch {
  const { kind: type, offset, length, ranges } = match;
  return { ...matchOf(match), type, offset, length, ranges: [...ranges] };
}
