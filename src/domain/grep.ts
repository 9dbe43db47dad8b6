import { type Static, Type } from "@sinclair/typebox";
import { oneOf } from "./one-of.ts";

/** What can end a search before it has seen everything. */
export const GREP_BOUNDS = ["limit", "bytes", "entries", "time", "line_length"] as const;
export type GrepBound = (typeof GREP_BOUNDS)[number];

export const GrepMatch = Type.Object({
  path: Type.String({ description: "U+FFFD stands for bytes that are not UTF-8" }),
  path_base64: Type.Optional(Type.String({ description: "the path's bytes, present when they are not UTF-8" })),
  line: Type.Integer({ minimum: 1, description: "number of the line" }),
  text: Type.String({ description: "the line, without its end" }),
  text_base64: Type.Optional(Type.String({ description: "the line's bytes, present when they are not UTF-8" })),
  text_truncated: Type.Optional(Type.Boolean({ description: "true: this is only the beginning of the line" })),
});
export type GrepMatch = Static<typeof GrepMatch>;

export const GrepResult = Type.Object({
  matches: Type.Array(GrepMatch, { description: "in the order of the tree: siblings by the bytes of their names" }),
  truncated: Type.Boolean({ description: "true: there may be more than what was found" }),
  truncated_by: Type.Array(oneOf(GREP_BOUNDS), {
    description: "the bounds that were met: of matches, bytes read, entries looked at, time, length of a line",
  }),
  files_searched: Type.Integer({ description: "files that were read; binary ones are not counted" }),
  bytes_searched: Type.Integer(),
});
export type GrepResult = Static<typeof GrepResult>;
