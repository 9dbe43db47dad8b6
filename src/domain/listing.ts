import { type Static, Type } from "@sinclair/typebox";
import type { ByteString } from "./guest-path.ts";
import { Timestamp } from "./ids.ts";
import { oneOf } from "./one-of.ts";

export const LIMIT_DEFAULT = 100;
export const LIMIT_MAX = 1000;

/** Kinds of entries in a file system, by the letter that `ls` shows ("f" for "-"). */
export type EntryType = "f" | "d" | "l" | "b" | "c" | "p" | "s";

/** One entry of an image's file system, as indexes and the merged tree give it. */
export interface Entry {
  readonly name: ByteString;
  readonly type: EntryType;
  /** permission bits with setuid, setgid and sticky, 0 to 0o7777 */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly nlink: number;
  /** size in `bytes`, at most 2^53-1 */
  readonly size: number;
  /** modification time in `seconds` since the epoch, possibly negative */
  readonly mtimeSeconds: number;
  readonly mtimeNanoseconds: number;
  /** target of a symlink, otherwise empty */
  readonly target: ByteString;
}

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
