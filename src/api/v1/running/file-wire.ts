import { isUtf8 } from "node:buffer";
import { ApiError } from "../../../domain/errors.ts";
import { given } from "../../../domain/given.ts";
import { isoTimeNs } from "../../../domain/log-event.ts";
import {
  ATTRIBUTE_PREFIX,
  checkGuestUser,
  type GuestFileProperties,
  type GuestEntry as StoredEntry,
} from "../../../domain/tree/guest-file.ts";
import {
  type ByteString,
  byteStringToBytes,
  bytesToByteString,
  displayName,
  type GuestPath,
  isUtf8 as isText,
  parseGuestPath,
  parseGuestPathText,
  pathBelow,
  textToByteString,
} from "../../../domain/tree/guest-path.ts";
import type { Principal } from "../../../service/parts.ts";
import type { FileRequest, WatchedEvent } from "../../../service/running/files.ts";
import { pathFields } from "../image-wire.ts";
import { TYPE_NAMES } from "../inspection/listing-format.ts";
import type { GuestEntry, GuestFileEvent } from "../schema/guest-files.ts";
import type { Runner } from "./runner.ts";

/** The wire form of an entry. @param path its absolute path */
export function entryOf(entry: StoredEntry, path: GuestPath): GuestEntry {
  const name = path.slice(path.lastIndexOf("/") + 1) as ByteString;
  const attributes = [...entry.attributes].filter(([, value]) => isUtf8(value));
  const target = entry.target === "" ? null : entry.target;
  return {
    ...pathFields(path),
    name: displayName(name),
    ...given({ name_base64: bytesOf(name) }),
    type: TYPE_NAMES[entry.type],
    mode: entry.mode.toString(8).padStart(4, "0"),
    size: entry.size ?? 0,
    uid: entry.uid,
    gid: entry.gid,
    ...(entry.user === "" ? {} : { user: displayName(entry.user) }),
    ...(entry.group === "" ? {} : { group: displayName(entry.group) }),
    links: entry.nlink,
    mtime: isoTimeNs(entry.mtimeNs),
    ...(target === null ? {} : { symlink_to: displayName(target), ...given({ symlink_to_base64: bytesOf(target) }) }),
    ...(attributes.length === 0 ? {} : { attributes: Object.fromEntries(attributes.map(attributeOf)) }),
  };
}

/** The wire form of an event below `directory`. */
export function eventOf({ type, cookie, path, entry }: WatchedEvent, directory: GuestPath): GuestFileEvent {
  const at = pathBelow(directory, path);
  return {
    type,
    ...pathFields(at),
    ...(cookie === 0 ? {} : { cookie }),
    ...(entry === null ? {} : { entry: entryOf(entry, at) }),
  };
}

function attributeOf([name, value]: [ByteString, Uint8Array]): [string, string] {
  return [displayName(name), Buffer.from(value).toString("utf8")];
}

function bytesOf(name: ByteString): string | null {
  return isText(name) ? null : byteStringToBytes(name).toString("base64");
}

/**
 * The path of a body, which has it as text or as bytes in base64.
 * @param field name of the field with the text
 * @throws ApiError `validation_error` unless there is one of both; `invalid_path`
 */
export function pathIn(body: Readonly<Record<string, unknown>>, field: "path" | "from" | "to"): GuestPath {
  const [text, bytes] = [body[field], body[`${field}_base64`]];
  if (typeof bytes === "string" && text === undefined) return parseGuestPath(bytesToByteString(decoded(bytes, field)));
  if (typeof text === "string" && bytes === undefined) return parseGuestPathText(text);
  throw new ApiError("validation_error", `either ${field} or ${field}_base64 is required`, { field });
}

function decoded(base64: string, field: string): Uint8Array {
  const bytes = Buffer.from(base64, "base64");
  if (bytes.toString("base64") === base64) return bytes;
  throw new ApiError("validation_error", `${field}_base64 must be standard base64 with padding`, { field });
}

/** A request to a route of files. */
interface FileAsked {
  readonly request: Request;
  readonly principal: Principal;
  readonly params: object;
  readonly query: { readonly path: ByteString; readonly user?: string | undefined };
}

/** The part that all requests for files have. @throws ApiError `invalid_path`, `validation_error`, `not_found` */
export function requestIn(runner: Runner<string>, { request, principal, params, query }: FileAsked): FileRequest {
  return {
    target: runner.target(principal, params),
    path: parseGuestPath(query.path),
    ...given({ user: query.user === undefined ? null : checkGuestUser(query.user) }),
    signal: request.signal,
  };
}

interface PropertyFields {
  readonly mode?: string | undefined;
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
  readonly attributes?: Readonly<Record<string, string | null>> | undefined;
}

/** The properties that a request sets. @throws ApiError `validation_error` */
export function propertiesIn({ mode, uid, gid, attributes }: PropertyFields): GuestFileProperties {
  if ((uid === undefined) !== (gid === undefined)) {
    throw new ApiError("validation_error", "uid and gid go together", { field: uid === undefined ? "uid" : "gid" });
  }
  return {
    ...given({ mode: mode === undefined ? null : Number.parseInt(mode, 8) }),
    ...(uid === undefined || gid === undefined ? {} : { owner: { uid, gid } }),
    ...(attributes === undefined ? {} : { attributes: new Map(Object.entries(attributes).map(changeOf)) }),
  };
}

function changeOf([name, value]: [string, string | null]): [ByteString, Uint8Array | null] {
  if (!name.startsWith(ATTRIBUTE_PREFIX) || name.includes("\0")) {
    throw new ApiError("validation_error", `attributes begin with ${ATTRIBUTE_PREFIX}`, { field: "attributes" });
  }
  return [textToByteString(name), value === null ? null : Buffer.from(value, "utf8")];
}

/** The attributes of a header, a JSON object of texts. @throws ApiError `validation_error` */
export function attributesIn(header: string | null): Readonly<Record<string, string>> | undefined {
  if (header === null) return undefined;
  const value = parsed(header);
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  if (isObject && Object.values(value).every((text) => typeof text === "string"))
    return value as Record<string, string>;
  throw new ApiError("validation_error", "X-Attributes must be a JSON object of texts", { field: "x-attributes" });
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}
