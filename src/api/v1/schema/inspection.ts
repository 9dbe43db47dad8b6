import { type Static, Type } from "@sinclair/typebox";
import { GREP_BOUNDS, GREP_LINE_KINDS } from "../../../domain/tree/grep.ts";
import { oneOf } from "../../wire-fields.ts";
import { Timestamp } from "./common.ts";

/** Kind of an entry on the wire. */
export const EntryTypeName = oneOf(["file", "directory", "symlink", "block", "char", "fifo", "socket"]);
export type EntryTypeName = Static<typeof EntryTypeName>;

/** Entry of a directory on the wire. */
export const ListingItem = Type.Object({
  name: Type.String({ description: "entry name; U+FFFD stands for bytes that are not UTF-8" }),
  name_base64: Type.Optional(Type.String({ description: "the name's bytes, present when they are not UTF-8" })),
  size: Type.Integer(),
  mode: Type.String({ pattern: "^[0-7]{4}$", description: "permission bits as four octal digits" }),
  type: EntryTypeName,
  is_regular: Type.Boolean(),
  is_dir: Type.Boolean(),
  is_symlink: Type.Boolean(),
  symlink_to: Type.Optional(Type.String({ description: "target of a symlink; U+FFFD as in the name" })),
  symlink_to_base64: Type.Optional(Type.String({ description: "the target's bytes, present when they are not UTF-8" })),
  uid: Type.Integer(),
  gid: Type.Integer(),
  modified_at: Timestamp,
});
export type ListingItem = Static<typeof ListingItem>;

export const DirectoryListing = Type.Object({
  path: Type.String({ description: "the listed directory" }),
  items: Type.Array(ListingItem),
});

/** An entry that a search by name has found. */
export const FoundEntry = Type.Object({
  path: Type.String({ description: "path; U+FFFD stands for bytes that are not UTF-8" }),
  path_base64: Type.Optional(Type.String({ description: "the path's bytes, present when they are not UTF-8" })),
  type: EntryTypeName,
  size: Type.Integer(),
});

export const FoundEntries = Type.Object({
  items: Type.Array(FoundEntry, {
    description: "directories before their entries, siblings by the bytes of their names",
  }),
  truncated: Type.Boolean({ description: "true: the search stopped at a bound, and there may be more entries" }),
});

export const GrepMatch = Type.Object({
  path: Type.String({ description: "path; U+FFFD stands for bytes that are not UTF-8" }),
  path_base64: Type.Optional(Type.String({ description: "the path's bytes, present when they are not UTF-8" })),
  line: Type.Integer({ minimum: 1, description: "number of the line" }),
  text: Type.String({ description: "the line, without its end" }),
  text_base64: Type.Optional(Type.String({ description: "the line's bytes, present when they are not UTF-8" })),
  text_truncated: Type.Optional(Type.Boolean({ description: "true: the text is cut" })),
  type: Type.Optional(oneOf(GREP_LINE_KINDS, { description: "whether the line matches, or is near one that does" })),
  offset: Type.Optional(Type.Integer({ description: "position of the line's first byte in the file" })),
  length: Type.Optional(
    Type.Integer({
      description: "number of bytes of the line, without its end; at least, if it was not read to its end",
    }),
  ),
  ranges: Type.Optional(
    Type.Array(Type.Object({ start: Type.Integer(), end: Type.Integer() }), {
      description: "ranges of the line's bytes that match, up to the first that begins where the text is cut",
    }),
  ),
});
export type GrepMatch = Static<typeof GrepMatch>;

export const GrepResult = Type.Object({
  matches: Type.Array(GrepMatch, { description: "in the order of the tree: siblings by the bytes of their names" }),
  truncated: Type.Boolean({ description: "true: the search stopped at a bound, and there may be more matches" }),
  truncated_by: Type.Array(oneOf(GREP_BOUNDS), {
    description: "the bounds that stopped it: of matches, bytes read, entries visited, time, or the length of a line",
  }),
  files_searched: Type.Integer({ description: "files that were read; binary ones are not counted" }),
  bytes_searched: Type.Integer(),
});
export type GrepResult = Static<typeof GrepResult>;
