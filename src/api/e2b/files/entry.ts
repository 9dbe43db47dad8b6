import { posix } from "node:path";
import { given } from "../../../domain/given.ts";
import { isoTimeNs } from "../../../domain/log-event.ts";
import type { GuestEntry } from "../../../domain/tree/guest-file.ts";
import { type ByteString, displayName, type GuestPath } from "../../../domain/tree/guest-path.ts";
import type { EntryType } from "../../../domain/tree/listing.ts";
import { metadataOf } from "./metadata.ts";

const FILE_TYPES: Readonly<Partial<Record<EntryType, string>>> = {
  f: "FILE_TYPE_FILE",
  d: "FILE_TYPE_DIRECTORY",
  l: "FILE_TYPE_SYMLINK",
};
const PERMISSION_BITS = 0o777;

/** The wire form of a message EntryInfo. */
export interface EntryInfo {
  readonly name: string;
  readonly type: string;
  readonly path: string;
  /** in `bytes` */
  readonly size: string;
  readonly mode: number;
  readonly permissions: string;
  readonly owner: string;
  readonly group: string;
  readonly modifiedTime: string;
  readonly symlinkTarget?: string;
  readonly metadata?: Readonly<Record<string, string>>;
}

/** The wire form of an entry whose symlink was followed, unless it leads nowhere. @param path its absolute path */
export function entryInfo(entry: GuestEntry, path: GuestPath): EntryInfo {
  const shownPath = displayName(path);
  const isLink = entry.target !== "";
  return {
    name: posix.basename(shownPath) || "/",
    type: FILE_TYPES[entry.type] ?? "FILE_TYPE_UNSPECIFIED",
    path: shownPath,
    size: String(entry.size ?? 0),
    mode: entry.mode & PERMISSION_BITS,
    permissions: isLink ? "lrwxrwxrwx" : permissionsOf(entry),
    owner: nameOf(entry.user, entry.uid),
    group: nameOf(entry.group, entry.gid),
    modifiedTime: isoTimeNs(entry.mtimeNs),
    ...given({
      symlinkTarget: isLink ? displayName(posix.resolve(posix.dirname(path), entry.target) as ByteString) : null,
      metadata: metadataOf(entry),
    }),
  };
}

function nameOf(name: ByteString, id: number): string {
  return name === "" ? String(id) : displayName(name);
}

/** Sets of permissions in the order of `ls`, with the bit that changes the third letter of each. */
const LETTERS = [
  { shift: 6, special: 0o4000, letter: "s" },
  { shift: 3, special: 0o2000, letter: "s" },
  { shift: 0, special: 0o1000, letter: "t" },
] as const;

/** The type and the permissions as `ls` prints them. */
function permissionsOf({ type, mode }: Pick<GuestEntry, "type" | "mode">): string {
  const sets = LETTERS.map(({ shift, special, letter }) => {
    const bits = mode >> shift;
    const executes = (bits & 1) !== 0;
    const specials = executes ? letter : letter.toUpperCase();
    const last = (mode & special) !== 0 ? specials : executes ? "x" : "-";
    return `${(bits & 4) === 0 ? "-" : "r"}${(bits & 2) === 0 ? "-" : "w"}${last}`;
  });
  return `${type === "f" ? "-" : type}${sets.join("")}`;
}
