import { ApiError } from "../../domain/errors.ts";
import { type ImageId, parseUuid } from "../../domain/ids.ts";
import { type ByteString, displayName, type GuestPath, parseGuestPath } from "../../domain/tree/guest-path.ts";
import { LIMIT_MAX } from "../../domain/tree/listing.ts";
import type { Principal } from "../../service/parts.ts";
import type { Service } from "../../service/service.ts";

/** Directories of the drive, with the scope that shows their entries. */
export const SHELVES = { images: "images:read", sandboxes: "instances:read", tags: "images:read" } as const;
export type Shelf = keyof typeof SHELVES;

/** A place in the drive: its root, a directory of images, or a path in an image. */
export type Place =
  | { readonly kind: "root" }
  | { readonly kind: "shelf"; readonly shelf: Shelf }
  | { readonly kind: "path"; readonly shelf: Shelf; readonly name: string; readonly path: GuestPath };

/** An image in one of the directories. */
export interface Volume {
  readonly name: string;
  /** in `milliseconds` since the epoch */
  readonly createdAt: number;
}

/**
 * The place of a request.
 * @param path percent-encoded, below the address of the drive
 * @throws ApiError `not_found`, `invalid_path`
 */
export function parsePlace(path: string): Place {
  const [shelf, name, ...rest] = path
    .split("/")
    .filter((segment) => segment !== "")
    .map(decoded);
  if (shelf === undefined) return { kind: "root" };
  if (!isShelf(shelf)) throw noSuchPlace();
  if (name === undefined) return { kind: "shelf", shelf };
  return { kind: "path", shelf, name: displayName(name), path: parseGuestPath(`/${rest.join("/")}` as ByteString) };
}

/** Percent-encoded path below the address of the drive. A directory ends in a slash. */
export function encodedPlace(segments: readonly ByteString[], isDirectory: boolean): string {
  const path = segments.map((segment) => `/${encoded(segment)}`).join("");
  return isDirectory ? `${path}/` : path;
}

/** The image of a place. @throws ApiError `not_found` */
export function imageAt(
  { images, inspect, sandboxes }: Service,
  principal: Principal,
  { shelf, name }: Extract<Place, { kind: "path" }>,
): { readonly id: ImageId; readonly createdAt: number } {
  if (shelf === "tags") return inspect.byTag(principal, tagOf(name));
  if (shelf === "images") {
    const id = parseUuid<ImageId>(name);
    if (id === null) throw noSuchPlace();
    return images.get(principal, id);
  }
  const { state, headId } = sandboxes.get(principal, sandboxes.find(principal, `name:${name}`));
  // The files of a machine that runs are in the machine.
  if (state !== "paused" || headId === null) throw noSuchPlace();
  return images.get(principal, headId);
}

/** The images of a directory, the newest first, at most LIMIT_MAX. */
export async function volumesOf(
  { images, sandboxes }: Service,
  principal: Principal,
  { shelf, signal }: { readonly shelf: Shelf; readonly signal: AbortSignal },
): Promise<readonly Volume[]> {
  const page = { limit: LIMIT_MAX, offset: 0, signal };
  switch (shelf) {
    case "images":
      return (await images.list(principal, page)).map(({ id, createdAt }) => ({ name: id, createdAt }));
    case "tags": {
      const tagged = await images.list(principal, { ...page, perTag: true, tagged: true });
      return tagged.flatMap(({ tag, createdAt }) => (tag === null ? [] : [{ name: nameOfTag(tag), createdAt }]));
    }
    case "sandboxes": {
      const paused = sandboxes.list(principal, { states: ["paused"], limit: LIMIT_MAX });
      return paused.sandboxes.map(({ name, createdAt }) => ({ name, createdAt }));
    }
  }
}

export function noSuchPlace(): ApiError {
  return new ApiError("not_found", "no such place in the drive");
}

/** A tag as the name of a directory: it may have slashes. */
function nameOfTag(tag: string): string {
  return tag.replaceAll("%", "%25").replaceAll("/", "%2F");
}

function tagOf(name: string): string {
  return name.replaceAll(/%2F/gi, "/").replaceAll("%25", "%");
}

function isShelf(name: string): name is Shelf {
  return Object.hasOwn(SHELVES, name);
}

/** The bytes of a segment; a percent sign without two digits stands for itself. */
function decoded(segment: string): ByteString {
  const bytes = Buffer.from(segment, "utf8").toString("latin1");
  return bytes.replaceAll(/%([0-9a-f]{2})/gi, (_, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 16)),
  ) as ByteString;
}

function encoded(segment: ByteString): string {
  return segment.replaceAll(
    /[^A-Za-z0-9._~-]/g,
    (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`,
  );
}
