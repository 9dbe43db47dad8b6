import type { Xattr } from "../index/layer-index.ts";
import type { PaxRecord } from "./tar-format.ts";

/*
 * The kernel stores an access control list as a binary extended attribute. Some extractors restore that attribute. Others,
 * such as GNU tar with --acls, use only a textual form of the list, and remove the list when there is none.
 */

const ACL_VERSION = 2;
const HEADER_BYTES = 4;
const ENTRY_BYTES = 8;

const KEYS: Readonly<Record<string, string>> = {
  "system.posix_acl_access": "SCHILY.acl.access",
  "system.posix_acl_default": "SCHILY.acl.default",
};

/** Words of the textual form by the kernel's tags; only some tags have a numeric id. */
const TAGS: Readonly<Record<number, { readonly word: string; readonly hasId: boolean }>> = {
  1: { word: "user", hasId: false },
  2: { word: "user", hasId: true },
  4: { word: "group", hasId: false },
  8: { word: "group", hasId: true },
  16: { word: "mask", hasId: false },
  32: { word: "other", hasId: false },
};

/** A record with the textual form of a list; null when the attribute is not a valid list. */
export function aclRecord({ name, value }: Xattr): PaxRecord | null {
  const key = Object.hasOwn(KEYS, name) ? KEYS[name] : undefined;
  const text = key === undefined ? null : aclText(value);
  return key === undefined || text === null ? null : [key, text];
}

/** Letters of a permission, by its bits. */
const LETTERS = ["---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"];

function aclText(value: Uint8Array): string | null {
  const bytes = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  const isWhole = bytes.length > HEADER_BYTES && (bytes.length - HEADER_BYTES) % ENTRY_BYTES === 0;
  if (!isWhole || bytes.readUInt32LE(0) !== ACL_VERSION) return null;
  let text = "";
  for (let at = HEADER_BYTES; at < bytes.length; at += ENTRY_BYTES) {
    const tag = TAGS[bytes.readUInt16LE(at)];
    const permissions = bytes.readUInt16LE(at + 2);
    const letters = LETTERS[permissions];
    if (tag === undefined || letters === undefined) return null;
    text += `${tag.word}:${tag.hasId ? bytes.readUInt32LE(at + 4) : ""}:${letters}\n`;
  }
  return text;
}
