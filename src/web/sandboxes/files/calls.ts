import {
  type FileAt,
  listFiles,
  makeDirectory as makeDirectoryAt,
  moveFile,
  readFile,
  removeFile,
  statFile,
  writeFile,
} from "../../../client/guest-files.ts";
import { pathOfPlace } from "../../../client/place.ts";
import type { GuestEntry, ListingItem } from "../../../client/types.ts";
import { api } from "../../data/api.ts";
import { problemOf } from "../../data/problem.ts";
import { uploadWithProgress } from "../../data/upload.ts";
import { bytesOf, type EncodedPath } from "../../image/paths.ts";

/** A file or a directory of a sandbox. */
export interface Place {
  /** uuid */
  readonly sandbox: string;
  readonly path: EncodedPath;
}

const fileAt = ({ sandbox, path }: Place, signal?: AbortSignal): FileAt => ({
  place: { sandbox },
  path: bytesOf(path),
  signal,
});

/** Largest number of entries that are shown. */
export const ENTRIES_MAX = 20_000;
/** Largest text that can be edited, in `bytes`. */
export const EDITED_BYTES_MAX = 1_048_576;

/** Entries of a directory: directories first, each kind by name. */
export interface Listing {
  readonly items: readonly ListingItem[];
  /** true: there are more than {@link ENTRIES_MAX} */
  readonly isCut: boolean;
}

/** The state of a file in the moment in which it was read: another one has another text. */
export type Version = string;

const versionOf = ({ mtime, size }: GuestEntry): Version => `${mtime} ${size}`;

/** The path of the content of a file, for `addressOf` and uploads. */
export const contentPath = ({ sandbox, path }: Place): string => `/v1${pathOfPlace({ sandbox })}/files?path=${path}`;

/** The entry at a path; of a link, the entry that it leads to. @throws as functions of the client do, as all of these */
export const readEntry = (place: Place, signal?: AbortSignal): Promise<GuestEntry> =>
  statFile(api, fileAt(place, signal));

/** The version of a file; null: there is no such file. */
export async function versionNow(place: Place): Promise<Version | null> {
  try {
    return versionOf(await readEntry(place));
  } catch (error) {
    if (problemOf(error).status === 404) return null;
    throw error;
  }
}

/** The entries of a directory. */
export async function readListing(place: Place, signal: AbortSignal): Promise<Listing> {
  const leaving = new AbortController();
  const items: ListingItem[] = [];
  let isFirst = true;
  for await (const entry of listFiles(api, fileAt(place, AbortSignal.any([signal, leaving.signal])), { depth: 1 })) {
    // The first entry is the directory itself.
    if (!isFirst) items.push(itemOf(entry));
    isFirst = false;
    if (items.length > ENTRIES_MAX) break;
  }
  const isCut = items.length > ENTRIES_MAX;
  leaving.abort();
  const rank = (item: ListingItem) => (item.is_dir ? 0 : 1);
  const byName = (a: ListingItem, b: ListingItem) => (a.name < b.name ? -1 : 1);
  items.length = Math.min(items.length, ENTRIES_MAX);
  items.sort((a, b) => rank(a) - rank(b) || byName(a, b));
  return { items, isCut };
}

function itemOf({ mtime, type, ...entry }: GuestEntry): ListingItem {
  return {
    ...entry,
    type,
    is_regular: type === "file",
    is_dir: type === "directory",
    is_symlink: type === "symlink",
    modified_at: mtime,
  };
}

/** A file that can be edited. */
export interface Content {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly version: Version;
}

/** The content of a file; null: it is too large. */
export async function readContent(place: Place, signal: AbortSignal): Promise<Content | null> {
  const entry = await readEntry(place, signal);
  if (entry.size > EDITED_BYTES_MAX) return null;
  const leaving = new AbortController();
  const response = await readFile(api, fileAt(place, AbortSignal.any([signal, leaving.signal])));
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  // A file may grow meanwhile, and those of /proc have no size.
  for await (const part of response.body ?? []) {
    parts.push(part);
    size += part.byteLength;
    if (size <= EDITED_BYTES_MAX) continue;
    leaving.abort();
    return null;
  }
  return { bytes: new Uint8Array(await new Blob(parts).arrayBuffer()), version: versionOf(entry) };
}

/** Writes a file in place, from its beginning. @returns its new version */
export const writeContent = async (place: Place, bytes: Uint8Array<ArrayBuffer>): Promise<Version> =>
  versionOf(await writeFile(api, fileAt(place), new Blob([bytes])));

/** Makes an empty file, unless there is one. */
export async function makeFile(place: Place): Promise<void> {
  await writeFile(api, fileAt(place), new Blob([]), { exclusive: true });
}

export interface FileUpload {
  readonly onProgress: (share: number) => void;
  readonly signal: AbortSignal;
}

/** Writes a file of the user's machine. */
export async function uploadFile(place: Place, file: Blob, options: FileUpload): Promise<void> {
  await uploadWithProgress(file, { ...options, method: "PUT", path: contentPath(place) });
}

export async function makeDirectory(place: Place): Promise<void> {
  await makeDirectoryAt(api, fileAt(place));
}

/** Gives an entry another path, unless there is one already. */
export async function moveEntry(place: Place, to: EncodedPath): Promise<void> {
  await moveFile(api, fileAt(place), { to: bytesOf(to) });
}

/** Removes an entry; a directory with everything below it. */
export async function removeEntry(place: Place, isDirectory: boolean): Promise<void> {
  await removeFile(api, fileAt(place), { recursive: isDirectory });
}
