import type { ByteString } from "./guest-path.ts";

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
