import { toBase64 } from "../../../client/base64.ts";
import type { ListingItem } from "../../../client/types.ts";
import { request } from "../../data/api.ts";
import { problemOf } from "../../data/problem.ts";
import { uploadWithProgress } from "../../data/upload.ts";
import { ITEMS_ACCEPTED, itemsOf } from "../../image/items.ts";
import { bytesOf, type EncodedPath } from "../../image/paths.ts";
import { pathOfSandbox } from "../calls.ts";

/** A file or a directory of a sandbox. */
export interface Place {
  /** uuid */
  readonly sandbox: string;
  readonly path: EncodedPath;
}

/** An entry as the API has it. */
export interface Entry {
  readonly name: string;
  readonly name_base64?: string;
  readonly type: ListingItem["type"];
  readonly mode: string;
  readonly size: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtime: string;
  readonly symlink_to?: string;
  readonly symlink_to_base64?: string;
}

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

const versionOf = ({ mtime, size }: Entry): Version => `${mtime} ${size}`;

function filePath({ sandbox, path }: Place, what = "", more = ""): string {
  return `${pathOfSandbox(sandbox)}/files${what}?path=${path}${more}`;
}

/** The path of the content of a file, for {@link request} and `addressOf`. */
export const contentPath = (place: Place): string => filePath(place);

/** The entry at a path; of a link, the entry that it leads to. @throws Problem; the reason of the signal, as all of these */
export async function readEntry(place: Place, signal?: AbortSignal): Promise<Entry> {
  const init = signal === undefined ? {} : { signal };
  return (await (await request(filePath(place, "/stat", "&follow=true"), init)).json()) as Entry;
}

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
  // The first entry is the directory itself.
  const path = filePath(place, "/list", `&depth=1&limit=${ENTRIES_MAX + 1}`);
  const response = await request(path, { headers: ITEMS_ACCEPTED, signal });
  const items: ListingItem[] = [];
  let isCut = false;
  let isFirst = true;
  for await (const part of itemsOf<Entry, { readonly truncated: boolean }>(response, signal)) {
    for (const entry of part.items) {
      if (!isFirst) items.push(itemOf(entry));
      isFirst = false;
    }
    isCut = part.end?.truncated === true;
  }
  const rank = (item: ListingItem) => (item.is_dir ? 0 : 1);
  const byName = (a: ListingItem, b: ListingItem) => (a.name < b.name ? -1 : 1);
  items.sort((a, b) => rank(a) - rank(b) || byName(a, b));
  return { items, isCut };
}

function itemOf({ mtime, type, ...entry }: Entry): ListingItem {
  return {
    ...entry,
    type,
    is_regular: type === "file",
    is_dir: type === "directory",
    is_symlink: type === "symlink",
    modified_at: mtime,
  };
}

/** A file that can be edited, or the reason why it cannot. */
export interface Content {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly version: Version;
}

/** The content of a file; null: it is too large. */
export async function readContent(place: Place, signal: AbortSignal): Promise<Content | null> {
  const entry = await readEntry(place, signal);
  if (entry.size > EDITED_BYTES_MAX) return null;
  const leaving = new AbortController();
  const response = await request(contentPath(place), { signal: AbortSignal.any([signal, leaving.signal]) });
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
export async function writeContent(place: Place, bytes: Uint8Array<ArrayBuffer>): Promise<Version> {
  const response = await request(contentPath(place), { method: "PUT", headers: BYTES, body: bytes });
  return versionOf(((await response.json()) as { readonly entry: Entry }).entry);
}

const BYTES = { "content-type": "application/octet-stream" } as const;

/** Makes an empty file, unless there is one. */
export async function makeFile(place: Place): Promise<void> {
  const headers = { ...BYTES, "if-none-match": "*" };
  await request(contentPath(place), { method: "PUT", headers, body: new Uint8Array(0) });
}

export interface FileUpload {
  readonly onProgress: (share: number) => void;
  readonly signal: AbortSignal;
}

/** Writes a file of the user's machine. */
export async function uploadFile(place: Place, file: Blob, options: FileUpload): Promise<void> {
  await uploadWithProgress(file, { ...options, method: "PUT", path: contentPath(place) });
}

export const makeDirectory = ({ sandbox, path }: Place): Promise<void> =>
  post(sandbox, "directory", pathField("path", path));

/** Gives an entry another path, unless there is one already. */
export const moveEntry = ({ sandbox, path }: Place, to: EncodedPath): Promise<void> =>
  post(sandbox, "move", { ...pathField("from", path), ...pathField("to", to), replace: false });

/** Removes an entry, and everything below it. */
export async function removeEntry(place: Place, isDirectory: boolean): Promise<void> {
  await request(filePath(place, "", isDirectory ? "&recursive=true" : ""), { method: "DELETE" });
}

async function post(sandbox: string, what: string, body: object): Promise<void> {
  const headers = { "content-type": "application/json" };
  const path = `${pathOfSandbox(sandbox)}/files/${what}`;
  await request(path, { method: "POST", headers, body: JSON.stringify(body) });
}

/** A path in a body: its bytes need not be UTF-8. */
function pathField(name: string, path: EncodedPath): object {
  return { [`${name}_base64`]: toBase64(bytesOf(path)) };
}
