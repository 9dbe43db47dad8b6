import type { Xattr } from "../index/layer-index.ts";
import type { PaxRecord } from "./tar-format.ts";

/*
 * An access control list is an extended attribute in the kernel's form. Some readers of archives restore that as it
 * is; others, GNU tar with --acls among them, look only for the list's text and otherwise take the list away.
 */

const ACL_VERSION = 2;
const HEADER_BYTES = 4;
const ENTRY_BYTES = 8;

const KEYS: Readonly<Record<string, string>> = {
  "system.posix_acl_access": "SCHILY.acl.access",
  "system.posix_acl_default": "SCHILY.acl.default",
};

/** Words of the text by the kernel's tags; the numeric id belongs to some only. */
const TAGS: Readonly<Record<number, { readonly word: string; readonly hasId: boolean }>> = {
  1: { word: "user", hasId: false },
  2: { word: "user", hasId: true },
  4: { word: "group", hasId: false },
  8: { word: "group", hasId: true },
  16: { word: "mask", hasId: false },
  32: { word: "other", hasId: false },
};

/** The text of a list as a record of its own; null when the attribute is no list. */
export function aclRecord({ name, value }: Xattr): PaxRecord | null {
  const key = Object.hasOwn(KEYS, name) ? KEYS[name] : undefined;
  const text = key === undefined ? null : aclText(value);
  return key === undefined || text === null ? null : [key, text];
}

/** By the permission bits. */
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
