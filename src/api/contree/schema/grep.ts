import { type Static, Type } from "@sinclair/typebox";
import {
  GREP_CASES,
  GREP_CONTEXT_COUNT_MAX,
  GREP_FILE_MATCHES_COUNT_MAX,
  GREP_GLOBS_COUNT_MAX,
  GREP_LINE_KINDS,
  GREP_MATCHES_COUNT_MAX,
  GREP_PATHS_COUNT_MAX,
  GREP_PATTERNS_COUNT_MAX,
} from "../../../domain/tree/grep.ts";
import type { ByteString } from "../../../domain/tree/guest-path.ts";
import { BYTES_KEYWORD, repeated } from "../../query.ts";
import { oneOf } from "../../wire-fields.ts";

/** Longest pattern and glob. */
const PATTERN_CHARACTERS_MAX = 1024;
/** Number of matching lines when the caller gives none. */
export const TOTAL_DEFAULT = 1000;

const integer = (name: string, minimum: number, maximum: number, description: string) =>
  Type.Integer({ minimum, maximum, description, error: `${name} must be an integer from ${minimum} to ${maximum}` });

const expression = (name: string) =>
  Type.String({
    minLength: 1,
    maxLength: PATTERN_CHARACTERS_MAX,
    error: `${name} must be 1 to ${PATTERN_CHARACTERS_MAX} characters`,
  });

export const GrepQuery = Type.Object({
  pattern: repeated("pattern", expression("pattern"), {
    maximum: GREP_PATTERNS_COUNT_MAX,
    description: "regular expression; a line must match one of several",
  }),
  path: Type.Optional(
    repeated("path", Type.Unsafe<ByteString>(Type.String({ [BYTES_KEYWORD]: true })), {
      maximum: GREP_PATHS_COUNT_MAX,
      description: "absolute path of a directory or file; / by default; several are searched one after the other",
    }),
  ),
  glob: Type.Optional(
    repeated("glob", expression("glob"), {
      maximum: GREP_GLOBS_COUNT_MAX,
      description: "only files that match; a leading ! leaves out; the last one that matches decides",
    }),
  ),
  max_count: Type.Optional(
    integer("max_count", 1, GREP_FILE_MATCHES_COUNT_MAX, "number of matching lines of each file"),
  ),
  max_total: Type.Optional({
    ...integer("max_total", 1, GREP_MATCHES_COUNT_MAX, "number of matching lines"),
    default: TOTAL_DEFAULT,
  }),
  case: Type.Optional(
    oneOf(GREP_CASES, {
      default: "sensitive",
      description: "smart: case is ignored unless a pattern has an upper-case letter",
      error: `case must be one of ${GREP_CASES.join(", ")}`,
    }),
  ),
  before: Type.Optional(integer("before", 0, GREP_CONTEXT_COUNT_MAX, "lines before each matching line")),
  after: Type.Optional(integer("after", 0, GREP_CONTEXT_COUNT_MAX, "lines after each matching line")),
});

export const GrepMatch = Type.Object({
  path: Type.String({ description: "absolute path" }),
  line_number: Type.Integer({ minimum: 1 }),
  absolute_offset: Type.Integer({ description: "position of the line's first byte in the file" }),
  line_text: Type.String({ description: "the line with its end, cut at 4096 bytes" }),
  line_bytes: Type.Integer({ description: "length of the line with its end" }),
  submatches: Type.Array(
    Type.Object({
      text: Type.String({ description: "the part of line_text" }),
      start: Type.Integer({ description: "byte of the line" }),
      end: Type.Integer(),
    }),
  ),
  type: oneOf(GREP_LINE_KINDS),
});
export type GrepMatch = Static<typeof GrepMatch>;

export const GrepResult = Type.Object({
  path: Type.String({ description: "the first path" }),
  patterns: Type.Array(Type.String()),
  truncated: Type.Boolean({ description: "true: the search stopped at a bound, and there may be more matches" }),
  matches: Type.Array(GrepMatch),
});
