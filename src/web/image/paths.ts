import { fromBase64 } from "../../client/base64.ts";
import { printable } from "../text/printable.ts";

declare const brand: unique symbol;

/**
 * Absolute path in an image, percent-encoded: names in an image are bytes, and need not be UTF-8. All bytes are encoded except
 * "/" and those that no URL parser changes, so equal paths are equal strings and can be part of a URL.
 */
export type EncodedPath = string & { readonly [brand]: "EncodedPath" };

export const ROOT = "/" as EncodedPath;

/** Bytes that are not encoded. */
const PLAIN = /^[A-Za-z0-9_.~/-]$/;

function encoded(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) {
    const character = String.fromCharCode(byte);
    text += PLAIN.test(character) ? character : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }
  return text;
}

/** The bytes of a percent-encoded text. A lone per cent sign is a byte. */
export function bytesOf(path: string): Uint8Array<ArrayBuffer> {
  const raw = new TextEncoder().encode(path);
  const bytes = new Uint8Array(raw.byteLength);
  let count = 0;
  for (let at = 0; at < raw.byteLength; at += 1) {
    const code = raw[at] === 0x25 ? String.fromCharCode(raw[at + 1] ?? 0, raw[at + 2] ?? 0) : "";
    const isByte = /^[0-9a-f]{2}$/i.test(code);
    bytes[count] = isByte ? Number.parseInt(code, 16) : (raw[at] ?? 0);
    if (isByte) at += 2;
    count += 1;
  }
  return bytes.slice(0, count);
}

/** A path of a link or of the API, without redundant slashes. */
function normalised(bytes: Uint8Array): EncodedPath {
  const parts = encoded(bytes)
    .split("/")
    .filter((part) => part !== "" && part !== ".");
  return `/${parts.join("/")}` as EncodedPath;
}

/** The path of an item of the API. */
export function pathFrom(answer: { readonly path: string; readonly path_base64?: string | undefined }): EncodedPath {
  const { path, path_base64: bytes } = answer;
  return normalised(bytes === undefined ? new TextEncoder().encode(path) : fromBase64(bytes));
}

/** A typed path, in UTF-8. */
export function pathFromText(text: string): EncodedPath {
  return normalised(new TextEncoder().encode(text.trim()));
}

/** The encoded path of a link. @param search the query of the address; null if it has no such path */
export function pathInQuery(search: string, name: string): EncodedPath | null {
  for (const field of search.replace(/^\?/, "").split("&")) {
    const [key = "", value = ""] = field.split("=", 2);
    if (key === name) return normalised(bytesOf(value.replaceAll("+", "%20")));
  }
  return null;
}

/** An entry of a directory. */
export function childOf(
  directory: EncodedPath,
  entry: { readonly name: string; readonly name_base64?: string | undefined },
): EncodedPath {
  const { name, name_base64: bytes } = entry;
  const own = encoded(bytes === undefined ? new TextEncoder().encode(name) : fromBase64(bytes));
  return (directory === ROOT ? `/${own}` : `${directory}/${own}`) as EncodedPath;
}

export function parentOf(path: EncodedPath): EncodedPath {
  const slash = path.lastIndexOf("/");
  return (slash <= 0 ? "/" : path.slice(0, slash)) as EncodedPath;
}

/** The directories above a path and the path itself, the root first. */
export function stepsTo(path: EncodedPath): EncodedPath[] {
  const parts = path.split("/").filter((part) => part !== "");
  return [ROOT, ...parts.map((_, index) => `/${parts.slice(0, index + 1).join("/")}` as EncodedPath)];
}

/**
 * Readable text of a path, for `GuestText` and `printable`. Each byte that is not UTF-8 becomes half a surrogate pair:
 * U+DC00 plus the byte.
 */
export function shownPath(path: string): string {
  return decoded(bytesOf(path));
}

/** Text of the last part of a path, as {@link shownPath}; "/" for the root. */
export function shownName(path: EncodedPath): string {
  return path === ROOT ? "/" : shownPath(path.slice(path.lastIndexOf("/") + 1));
}

/** Text of a name or target that the API gives, as {@link shownPath}. */
export function shownText(text: string, base64: string | undefined): string {
  return base64 === undefined ? text : decoded(fromBase64(base64));
}

/** A name for a saved file: one line, without characters that file systems refuse. */
export function savedName(path: EncodedPath): string {
  const name = printable(shownName(path)).replaceAll(/[\\/:*?"<>|]/g, "_");
  return name === "" || /^[._]+$/.test(name) ? "root" : name;
}

/** Decodes UTF-8, with half a surrogate pair for each invalid byte. */
function decoded(bytes: Uint8Array): string {
  const whole = new TextDecoder().decode(bytes);
  if (!whole.includes("\ufffd")) return whole;
  let text = "";
  for (let at = 0; at < bytes.byteLength; ) {
    const length = characterLength(bytes, at);
    const byte = bytes[at] ?? 0;
    if (length === 0) text += String.fromCharCode(0xdc00 + byte);
    else text += new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes.subarray(at, at + length));
    at += Math.max(1, length);
  }
  return text;
}

/** Number of bytes of the character at a position; 0 if none begins there. */
function characterLength(bytes: Uint8Array, at: number): number {
  for (let length = 1; length <= 4 && at + length <= bytes.byteLength; length += 1) {
    try {
      new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(at, at + length));
      return length;
    } catch {
      // TypeError: the bytes are incomplete; one more may complete the character.
    }
  }
  return 0;
}
