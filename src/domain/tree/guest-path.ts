import { ApiError } from "../errors.ts";

declare const brand: unique symbol;

/**
 * Bytes of a guest's name, as a string with one char code (0 to 255) for each byte. Names in a guest are bytes, not text,
 * and this form compares, joins and sorts as the bytes do. Show `displayName` of it to people.
 */
export type ByteString = string & { readonly [brand]: "ByteString" };

/**
 * Absolute, normalised path in an image, as bytes: it begins with "/", and has no trailing slash and no empty, "." or
 * ".." component. The root is "/".
 */
export type GuestPath = ByteString & { readonly [brand]: "ByteString" };

/** Longest path, in `bytes`; Linux's PATH_MAX includes the final NUL. */
export const GUEST_PATH_BYTES_MAX = 4096;
/** Longest name of an entry, in `bytes`: NAME_MAX of all file systems that layers use. */
export const GUEST_NAME_BYTES_MAX = 255;

export function bytesToByteString(bytes: Uint8Array): ByteString {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("latin1") as ByteString;
}

export function textToByteString(text: string): ByteString {
  return Buffer.from(text, "utf8").toString("latin1") as ByteString;
}

export function byteStringToBytes(value: ByteString): Buffer {
  return Buffer.from(value, "latin1");
}

/** Most names are of ASCII, which need not be decoded. */
const ASCII = /^[\0-\x7f]*$/;

/** Text of a name for people and JSON; U+FFFD replaces bytes that are not UTF-8. */
export function displayName(value: ByteString): string {
  if (ASCII.test(value)) return value;
  return byteStringToBytes(value).toString("utf8");
}

/** True when `displayName` is lossless. */
export function isUtf8(value: ByteString): boolean {
  if (ASCII.test(value)) return true;
  return textToByteString(displayName(value)) === value;
}

/**
 * Validates and normalises a path of a request.
 * @throws ApiError `invalid_path` when it is relative, empty or too long, or contains NUL or ".."
 */
export function parseGuestPath(value: ByteString): GuestPath {
  const fail = (reason: string): never => {
    throw new ApiError("invalid_path", `path ${reason}`, { path: displayName(value).slice(0, 200) });
  };
  if (value.length === 0) fail("is empty");
  if (!value.startsWith("/")) fail("must be absolute");
  if (value.includes("\0")) fail("must not contain NUL");
  if (value.length > GUEST_PATH_BYTES_MAX) fail(`must be at most ${GUEST_PATH_BYTES_MAX} bytes`);
  const parts = value.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) fail('must not contain ".."');
  if (parts.some((part) => part.length > GUEST_NAME_BYTES_MAX)) {
    fail(`must not have a component over ${GUEST_NAME_BYTES_MAX} bytes`);
  }
  return `/${parts.join("/")}` as GuestPath;
}

/** `parseGuestPath` for a text, such as one in a JSON body. */
export function parseGuestPathText(text: string): GuestPath {
  return parseGuestPath(textToByteString(text));
}

/** A path below a directory. @param relative normalised; empty for the directory itself */
export function pathBelow(directory: GuestPath, relative: ByteString): GuestPath {
  if (relative === "") return directory;
  return `${directory === "/" ? "" : directory}/${relative}` as GuestPath;
}
