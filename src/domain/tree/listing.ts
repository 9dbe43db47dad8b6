import type { ByteString } from "./guest-path.ts";

export const LIMIT_DEFAULT = 100;
export const LIMIT_MAX = 1000;
/** Largest number of images in an answer with the branches. */
export const BRANCHES_COUNT_MAX = 20_000;

/** Types of file system entries, by the letter that `ls` shows, except "f" for a regular file. */
export type EntryType = "f" | "d" | "l" | "b" | "c" | "p" | "s";

/** An entry of a layer's index, or of an image's merged tree. */
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
