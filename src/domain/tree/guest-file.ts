import { ApiError } from "../errors.ts";
import type { ByteString, GuestPath } from "./guest-path.ts";
import type { EntryType } from "./listing.ts";

/** Largest depth of a listing; 0 is the path alone. */
export const LIST_DEPTH_MAX = 64;
/** Limit of the files that one join puts together. */
export const JOINED_FILES_COUNT_MAX = 64;
/** Attributes that requests may read and change begin so; the kernel keeps the others for itself. */
export const ATTRIBUTE_PREFIX = "user.";
/** Longest name of a user or a group, in `bytes`. */
export const USER_NAME_BYTES_MAX = 256;

/** An entry of the file system of a running instance. */
export interface GuestEntry {
  /** as requested; of the entries of a listing, relative to the listed directory, which itself is empty */
  readonly path: ByteString;
  readonly type: EntryType;
  /** permission bits with setuid, setgid and sticky, 0 to 0o7777 */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** the names of the owners in the guest's passwd and group; empty: they have none */
  readonly user: ByteString;
  readonly group: ByteString;
  /** size in `bytes`; 2^53-1 also stands for larger ones; null: a file that was opened has none, as in /proc */
  readonly size: number | null;
  /** modification time in `nanoseconds` since the epoch, possibly negative */
  readonly mtimeNs: bigint;
  readonly inode: bigint;
  readonly nlink: number;
  /** text of a symlink; if it was followed, the absolute path of what it leads to, which the other fields are about */
  readonly target: ByteString;
  /** values of the attributes `user.*`; none in a listing */
  readonly attributes: ReadonlyMap<ByteString, Uint8Array>;
}

/** A path of a running instance, and the user in whose name it is used. */
export interface GuestFile {
  readonly path: GuestPath;
  /** a name or number, optionally with `:` and a group, which the guest's passwd and group resolve; empty: root */
  readonly user: string;
}

/** A user of a guest, as its passwd has them. Every field comes from the guest. */
export interface GuestUser {
  /** empty: the guest has no name for the number */
  readonly name: ByteString;
  readonly uid: number;
  readonly gid: number;
  /** absolute */
  readonly home: ByteString;
  readonly shell: ByteString;
}

/** Properties of a file to be set; absent ones stay. */
export interface GuestFileProperties {
  /** permission bits, 0 to 0o7777 */
  readonly mode?: number | undefined;
  readonly owner?: { readonly uid: number; readonly gid: number } | undefined;
  /** null removes an attribute */
  readonly attributes?: ReadonlyMap<ByteString, Uint8Array | null> | undefined;
}

/**
 * Types of events. overflow: events were lost. ready: the watch has begun. gone: the watched directory is gone, and no event
 * follows. A rename within the watched directories has two events with the same cookie.
 */
export const GUEST_FILE_EVENTS = [
  "ready",
  "create",
  "write",
  "remove",
  "rename_from",
  "rename_to",
  "chmod",
  "overflow",
  "gone",
] as const;

/** A change below a watched directory. */
export interface GuestFileEvent {
  readonly type: (typeof GUEST_FILE_EVENTS)[number];
  /** joins the two events of a rename; 0: none */
  readonly cookie: number;
  /** relative to the watched directory */
  readonly path: ByteString;
}

const USER = /^[^:\0\n]{1,256}(?::[^:\0\n]{1,256})?$/;

/** A user, or a user and a group, by name or number. @throws ApiError `validation_error` */
export function checkGuestUser(text: string): string {
  if (USER.test(text) && Buffer.byteLength(text) <= 2 * USER_NAME_BYTES_MAX) return text;
  throw new ApiError("validation_error", "user must be a name or a number, or such with `:` and a group", {
    field: "user",
  });
}
