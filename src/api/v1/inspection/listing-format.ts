import { type ByteString, byteStringToBytes, displayName, isUtf8 } from "../../../domain/tree/guest-path.ts";
import type { Entry, EntryType } from "../../../domain/tree/listing.ts";
import { modifiedAt } from "../../content/listing-line.ts";
import type { ListingItem } from "../schema/inspection.ts";

/** Wire names of entry types. */
export const TYPE_NAMES = {
  f: "file",
  d: "directory",
  l: "symlink",
  b: "block",
  c: "char",
  p: "fifo",
  s: "socket",
} as const satisfies Record<EntryType, string>;

/** The wire form of an entry. */
export function listingItem(entry: Entry): ListingItem {
  const { name, target, type } = entry;
  // A listing makes many, and spread objects take twice the time. JSON leaves out what is undefined.
  return {
    name: displayName(name),
    name_base64: bytesOf(name),
    size: entry.size,
    mode: entry.mode.toString(8).padStart(4, "0"),
    type: TYPE_NAMES[type],
    is_regular: type === "f",
    is_dir: type === "d",
    is_symlink: type === "l",
    symlink_to: type === "l" ? displayName(target) : undefined,
    symlink_to_base64: type === "l" ? bytesOf(target) : undefined,
    uid: entry.uid,
    gid: entry.gid,
    modified_at: modifiedAt(entry),
  } as ListingItem;
}

/** The bytes of a name that is not UTF-8; undefined otherwise. */
function bytesOf(name: ByteString): string | undefined {
  return isUtf8(name) ? undefined : byteStringToBytes(name).toString("base64");
}
