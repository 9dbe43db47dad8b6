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
  return {
    name: displayName(entry.name),
    ...bytesField("name_base64", entry.name),
    size: entry.size,
    mode: entry.mode.toString(8).padStart(4, "0"),
    type: TYPE_NAMES[entry.type],
    is_regular: entry.type === "f",
    is_dir: entry.type === "d",
    is_symlink: entry.type === "l",
    ...(entry.type === "l"
      ? { symlink_to: displayName(entry.target), ...bytesField("symlink_to_base64", entry.target) }
      : {}),
    uid: entry.uid,
    gid: entry.gid,
    modified_at: modifiedAt(entry),
  };
}

/** A field with the bytes of a name that is not UTF-8; none otherwise. */
function bytesField<Name extends string>(field: Name, value: ByteString): { [name in Name]?: string } {
  if (isUtf8(value)) return {};
  return { [field]: byteStringToBytes(value).toString("base64") } as { [name in Name]?: string };
}
