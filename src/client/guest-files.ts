import { given } from "../domain/given.ts";
import { toBase64 } from "./base64.ts";
import type { CallOptions, Client } from "./client.ts";
import { linesOf } from "./connections/chunks.ts";
import { encodedPath } from "./encoded-path.ts";
import { AnswerError, UnreachableError } from "./errors.ts";
import { readEvents } from "./events.ts";
import { type Place, pathOfPlace } from "./place.ts";
import type { GuestEntry, GuestFileEvent } from "./types.ts";

/** A file of what runs. All functions throw ResponseError, UnreachableError, and the reason of `signal`. */
export interface FileAt {
  readonly place: Place;
  /** absolute; bytes where the path need not be UTF-8 */
  readonly path: string | Uint8Array;
  /** in whose name: a user of the guest by name or number, optionally with `:` and a group */
  readonly user?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Properties that a request sets; absent ones stay. */
export interface FileProperties {
  /** octal permissions, such as 0644 */
  readonly mode?: string | undefined;
  readonly owner?: { readonly uid: number; readonly gid: number } | undefined;
}

export interface WriteOptions extends FileProperties {
  /** false: the directories above must exist */
  readonly parents?: boolean | undefined;
  /** true: the file appears when it is complete, as a new file */
  readonly atomic?: boolean | undefined;
  /** true: the bytes are added at the end */
  readonly append?: boolean | undefined;
  /** extended attributes to set, by names that begin with `user.` */
  readonly attributes?: Readonly<Record<string, string>> | undefined;
  /** true: the file must not exist */
  readonly exclusive?: boolean | undefined;
}

/** Describes a file. @param options.follow false: a final symlink itself; default is what it leads to */
export async function statFile(
  client: Client,
  file: FileAt,
  { follow }: { readonly follow?: boolean } = {},
): Promise<GuestEntry> {
  return await client.exchange("GET", viewOf(file, "stat"), queryOf(file, { follow }));
}

/**
 * The entries of a directory on arrival: first the directory itself, then each directory before those in it, in no other
 * order.
 * @throws AnswerError when the listing is not complete
 */
export async function* listFiles(
  client: Client,
  file: FileAt,
  { depth, follow }: { readonly depth?: number; readonly follow?: boolean } = {},
): AsyncGenerator<GuestEntry, void, undefined> {
  const options = { ...queryOf(file, { depth, follow }), deadline: false };
  const { body } = await client.call("GET", viewOf(file, "list"), options);
  if (body === null) throw new AnswerError("the listing has no entries");
  const failure = (error: Error): unknown =>
    file.signal?.aborted
      ? file.signal.reason
      : new UnreachableError(`the listing broke off: ${error.message}`, { cause: error });
  let isOver = false;
  for await (const lines of linesOf(body, failure)) {
    for (const line of lines) {
      const entry = JSON.parse(line) as GuestEntry | { readonly type: "end" };
      if (entry.type === "end") isOver = true;
      else yield entry;
    }
  }
  if (!isOver) throw new AnswerError("the listing has no end");
}

/** The content of a regular file, or a range of it; the body may be read at any pace. */
export async function readFile(
  client: Client,
  file: FileAt,
  { start, end }: { readonly start?: number; readonly end?: number } = {},
): Promise<Response> {
  const isRange = start !== undefined || end !== undefined;
  const headers = isRange ? { range: `bytes=${start ?? 0}-${end === undefined ? "" : end - 1}` } : {};
  return await client.call("GET", viewOf(file), { ...queryOf(file), headers, deadline: false });
}

/** Writes a file as fast as the guest takes the body. */
export async function writeFile(
  client: Client,
  file: FileAt,
  body: Blob | ReadableStream<Uint8Array>,
  { owner, attributes, exclusive, ...options }: WriteOptions = {},
): Promise<GuestEntry> {
  const headers = {
    ...(attributes === undefined ? {} : { "x-attributes": JSON.stringify(attributes) }),
    ...(exclusive === true ? { "if-none-match": "*" } : {}),
  };
  const query = queryOf(file, { ...options, ...owner });
  const { entry } = await client.exchange<Changed>("PUT", viewOf(file), { ...query, headers, body, deadline: false });
  return entry;
}

/** Removes a file or an empty directory; with `recursive`, all that is in it. */
export async function removeFile(
  client: Client,
  file: FileAt,
  { recursive }: { readonly recursive?: boolean } = {},
): Promise<void> {
  await client.call("DELETE", viewOf(file), { ...queryOf(file, { recursive }), deadline: false });
}

/** Makes a directory, unless it exists. */
export async function makeDirectory(
  client: Client,
  file: FileAt,
  { owner, ...options }: FileProperties & Pick<WriteOptions, "parents"> = {},
): Promise<{ readonly entry: GuestEntry; readonly created: boolean }> {
  const json = { ...pathFields("path", file.path), ...userOf(file), ...given({ ...options, ...owner }) };
  return await client.exchange("POST", viewOf(file, "directory"), { ...given({ signal: file.signal }), json });
}

/** Renames a file or a directory. */
export async function moveFile(
  client: Client,
  from: FileAt,
  { to, replace }: { readonly to: FileAt["path"]; readonly replace?: boolean },
): Promise<GuestEntry> {
  const json = { ...pathFields("from", from.path), ...pathFields("to", to), ...userOf(from), ...given({ replace }) };
  const options = { ...given({ signal: from.signal }), json, deadline: false };
  return (await client.exchange<Changed>("POST", viewOf(from, "move"), options)).entry;
}

/** Makes a file of the contents of others, which stay. */
export async function joinFiles(
  client: Client,
  to: FileAt,
  { from, owner, mode }: FileProperties & { readonly from: readonly string[] },
): Promise<GuestEntry> {
  const json = { ...pathFields("to", to.path), ...userOf(to), from, ...given({ mode, ...owner }) };
  const options = { ...given({ signal: to.signal }), json, deadline: false };
  return (await client.exchange<Changed>("POST", viewOf(to, "join"), options)).entry;
}

/** Sets properties of a file; a value of null removes an attribute. */
export async function changeFile(
  client: Client,
  file: FileAt,
  {
    owner,
    mode,
    attributes,
  }: FileProperties & { readonly attributes?: Readonly<Record<string, string | null>> | undefined },
): Promise<GuestEntry> {
  const json = { ...pathFields("path", file.path), ...userOf(file), ...given({ mode, attributes, ...owner }) };
  return await client.exchange("PATCH", viewOf(file, "attributes"), { ...given({ signal: file.signal }), json });
}

/** The changes in a directory on arrival, until the caller leaves the loop or the directory is gone; the first is `ready`. */
export async function* watchFiles(
  client: Client,
  file: FileAt,
  options: { readonly recursive?: boolean; readonly entries?: boolean } = {},
): AsyncGenerator<GuestFileEvent, void, undefined> {
  const query = queryOf(file, options);
  for await (const { data } of readEvents(client, viewOf(file, "watch"), query)) yield JSON.parse(data);
}

interface Changed {
  readonly entry: GuestEntry;
}

function viewOf({ place }: FileAt, view = ""): string {
  return `${pathOfPlace(place)}/files${view === "" ? "" : `/${view}`}`;
}

/** Encodes the query, because a path need not be UTF-8. */
function queryOf(
  { path, user, signal }: FileAt,
  more: Readonly<Record<string, string | number | boolean | undefined>> = {},
): CallOptions {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(given({ user, ...more }))) fields.set(name, String(value));
  return { rawQuery: `path=${encodedPath(path)}&${fields}`, ...given({ signal }) };
}

/** A path in a body: text, or bytes in base64. */
function pathFields(name: "path" | "from" | "to", path: FileAt["path"]): Readonly<Record<string, string>> {
  return typeof path === "string" ? { [name]: path } : { [`${name}_base64`]: toBase64(path) };
}

function userOf({ user }: FileAt): { readonly user?: string } {
  return given({ user });
}
