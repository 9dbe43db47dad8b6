import { given } from "../../../domain/given.ts";
import { type ByteString, displayName, type GuestPath } from "../../../domain/tree/guest-path.ts";
import { bodyStream } from "../../body/body.ts";
import { gunzipChunks } from "../../stream/gzip.ts";
import { E2bError } from "../errors.ts";
import type { E2bParts } from "../options.ts";
import { attributesIn, metadataOf, staleOf } from "./metadata.ts";
import { boundaryOf, partsOf } from "./multipart.ts";
import { atPath, type FilesPlace, fileAt, queryOf, unlessMissing } from "./place.ts";

const RAW_TYPE = /^application\/octet-stream\s*(?:;|$)/i;
/** The field whose parts are files. */
const FILE_FIELD = "file";

/** A file that a request wrote. */
export interface WrittenFile {
  readonly path: string;
  readonly name: string;
  readonly type: "file";
  readonly metadata?: Readonly<Record<string, string>>;
}

/**
 * Writes the files of a request, as its bytes arrive: one file of raw bytes, or the parts of a form.
 * @throws E2bError 400, 507; ApiError `validation_error` for a malformed body; as `GuestFileUseCases.write` does
 */
export async function uploadFiles(parts: E2bParts, request: Request, place: FilesPlace): Promise<WrittenFile[]> {
  const attributes = attributesIn(request.headers);
  const write = (path: string, content: AsyncIterable<Uint8Array>, written: readonly WrittenFile[]) =>
    writeFile(parts, place, { path, content, attributes, written });
  const contentType = request.headers.get("content-type") ?? "";
  const path = queryOf(request).get("path");
  const body = decoded(request, place.envd.sandbox.resources.diskBytes);
  if (RAW_TYPE.test(contentType)) {
    if (path === null) throw new E2bError(400, "path is required for a body of raw bytes");
    return [await write(path, body, [])];
  }
  const boundary = boundaryOf(contentType);
  if (boundary === null) {
    throw new E2bError(400, "unsupported content type, expected multipart/form-data or application/octet-stream");
  }
  const written: WrittenFile[] = [];
  for await (const { name, filename, content } of partsOf(body, boundary)) {
    if (name !== FILE_FIELD) continue;
    if (path === null && filename === null) throw new E2bError(400, "a part has no filename, and the query no path");
    written.push(await write(path ?? filename ?? "", content, written));
  }
  return written;
}

/**
 * The bytes of a body. Compressed ones may expand to `expandedBytesMax`.
 * @throws E2bError 400 for an unknown encoding
 */
function decoded(request: Request, expandedBytesMax: number): AsyncIterable<Uint8Array> {
  const encoding = request.headers.get("content-encoding")?.trim().toLowerCase() ?? "identity";
  const body = bodyStream(request);
  if (encoding === "identity" || encoding === "") return body;
  if (encoding === "gzip" || encoding === "x-gzip") return bounded(gunzipChunks(body), expandedBytesMax);
  throw new E2bError(400, "unsupported Content-Encoding, expected gzip or identity");
}

/**
 * Chunks up to a number of `bytes`: zeros expand a thousandfold, and take no space in a guest.
 * @throws E2bError 507 beyond them
 */
async function* bounded(chunks: AsyncIterable<Uint8Array>, bytesMax: number): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  for await (const chunk of chunks) {
    bytes += chunk.byteLength;
    if (bytes > bytesMax) throw new E2bError(507, "not enough disk space available");
    yield chunk;
  }
}

interface FileToWrite {
  readonly path: string;
  readonly content: AsyncIterable<Uint8Array>;
  readonly attributes: ReadonlyMap<ByteString, Uint8Array>;
  /** the files that the request wrote before */
  readonly written: readonly WrittenFile[];
}

/** Writes one file in its place. Its metadata are those of the request alone. */
async function writeFile(
  { service: { guestFiles } }: E2bParts,
  place: FilesPlace,
  { path, content, attributes, written }: FileToWrite,
): Promise<WrittenFile> {
  const { envd, owner } = place;
  const file = fileAt(place, path);
  const shownPath = displayName(file.path);
  if (written.some((other) => other.path === shownPath)) {
    throw new E2bError(400, `you cannot upload multiple files to the same path '${shownPath}' in one upload request`);
  }
  return await atPath(file.path, async () => {
    const options = { parents: true, atomic: false, append: false, exclusive: false };
    const entry = await guestFiles.write(envd.principal, { ...file, ...options, owner, attributes, content });
    const stale = staleOf(entry, attributes);
    const last = stale.size === 0 ? entry : await guestFiles.change(envd.principal, { ...file, attributes: stale });
    return { ...namesOf(file.path), type: "file", ...given({ metadata: metadataOf(last) }) };
  });
}

function namesOf(path: GuestPath) {
  const shownPath = displayName(path);
  return { path: shownPath, name: shownPath.slice(shownPath.lastIndexOf("/") + 1) };
}

/** The body of a request that joins files. */
export interface ComposeBody {
  readonly source_paths?: readonly string[] | null;
  readonly destination?: string | null;
}

/**
 * Makes a file of others, which are removed when it is complete.
 * @throws E2bError 400; as `GuestFileUseCases.join` does
 */
export async function composeFile(
  { service: { guestFiles } }: E2bParts,
  place: FilesPlace,
  { source_paths: sources, destination }: ComposeBody,
): Promise<WrittenFile> {
  const { envd, owner } = place;
  if (!sources || sources.length === 0) throw new E2bError(400, "source_paths must not be empty");
  if (!destination) throw new E2bError(400, "destination is required");
  const file = fileAt(place, destination);
  const from = sources.map((source) => fileAt(place, source));
  const same = from.find(({ path }) => path === file.path);
  if (same !== undefined) throw new E2bError(400, "a source path cannot be the same as the destination");
  const { inode, mtimeNs } = await guestFiles.join(envd.principal, {
    ...file,
    owner,
    from: from.map(({ path }) => path),
  });
  for (const source of new Map(from.map((each) => [each.path, each])).values()) {
    const entry = await guestFiles.stat(envd.principal, { ...source, follow: false }).catch(unlessMissing);
    // A symlink in the path of a source may lead to the new file.
    if (entry === undefined || (entry.inode === inode && entry.mtimeNs === mtimeNs)) continue;
    await guestFiles.remove(envd.principal, { ...source, recursive: false }).catch(unlessMissing);
  }
  return { ...namesOf(file.path), type: "file" };
}
