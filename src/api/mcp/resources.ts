import { ApiError } from "../../domain/errors.ts";
import { type ImageId, isoTime, type OperationId, parseUuid } from "../../domain/ids.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import { bytesToByteString, displayName, type GuestPath, parseGuestPath } from "../../domain/tree/guest-path.ts";
import { outputChunks, outputUri, type Reading, rangeOf } from "./output.ts";
import { requireScope } from "./problem.ts";
import { isBinary, shownName } from "./text.ts";

/** Largest content of one answer, in `bytes`; the rest of a content has a separate address. */
const READ_BYTES_MAX = 262_144;
const PAGE_COUNT = 50;
const LISTING_COUNT_MAX = 1000;

const BINARY_TYPE = "application/octet-stream";
/** Content type of all files of guests: a client must not render them. */
const TEXT_TYPE = "text/plain";

export const RESOURCE_TEMPLATES = [
  {
    name: "file",
    uriTemplate: "coppice://images/{image}/files/{+path}",
    description: `A file of an image as text or blob, ${READ_BYTES_MAX} bytes at once (?offset=N for more); of a directory, its names`,
  },
  {
    name: "output",
    uriTemplate: "coppice://operations/{operation}/{stream}",
    description: "stdout or stderr of a run, likewise",
  },
];

/** Address of a file or directory of an image. */
export function fileUri(id: ImageId, path: GuestPath): string {
  const parts = path.split("/").map((part) => encodeBytes(part));
  return `coppice://images/${id}/files${parts.join("/")}`;
}

/** A part of a path, which is a byte string, encoded for a URI. */
function encodeBytes(part: string): string {
  return part.replace(
    /[^A-Za-z0-9._~-]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`,
  );
}

interface Page {
  readonly resources: readonly { readonly uri: string; readonly name: string; readonly description: string }[];
  readonly nextCursor?: string;
}

/** Images, each as the listing of its root. @throws ApiError `validation_error` for the cursor, `forbidden` */
export async function listResources(
  { service, principal, signal }: Reading,
  cursor: string | undefined,
): Promise<Page> {
  requireScope(principal, "images:read");
  if (cursor !== undefined && !/^\d{1,9}$/.test(cursor))
    throw new ApiError("validation_error", "cursor must be the nextCursor of a listing");
  const offset = Number(cursor ?? 0);
  const images = await service.images.list(principal, { limit: PAGE_COUNT, offset, signal });
  const resources = images.map(({ id, tag, createdAt }) => ({
    uri: fileUri(id, "/" as GuestPath),
    name: tag ?? id,
    description: `root directory of image ${id}, made ${isoTime(createdAt)}`,
  }));
  return { resources, ...(images.length < PAGE_COUNT ? {} : { nextCursor: String(offset + PAGE_COUNT) }) };
}

interface Contents {
  readonly contents: readonly Readonly<Record<string, unknown>>[];
}

const FILE_URI = /^coppice:\/\/images\/([0-9A-Fa-f-]{36})\/files(\/[^?#]*)?(?:\?offset=(\d{1,15}))?$/;
const OUTPUT_URI = /^coppice:\/\/operations\/([0-9A-Fa-f-]{36})\/(\w+)(?:\?offset=(\d{1,15}))?$/;

/** A part of a file or an output, or the names of a directory. @throws ApiError */
export async function readResource(reading: Reading, uri: string): Promise<Contents> {
  const file = FILE_URI.exec(uri);
  const image = parseUuid<ImageId>(file?.[1] ?? "");
  if (file !== null && image !== null) {
    requireScope(reading.principal, "images:read");
    return await readPath(reading, uri, { id: image, path: pathOf(file[2] ?? "/"), offset: Number(file[3] ?? 0) });
  }
  const output = OUTPUT_URI.exec(uri);
  const operation = parseUuid<OperationId>(output?.[1] ?? "");
  const stream = OUTPUT_STREAMS.find((name) => name === output?.[2]);
  if (operation === null || stream === undefined) {
    const shapes = RESOURCE_TEMPLATES.map(({ uriTemplate }) => uriTemplate).join(" or ");
    throw new ApiError("validation_error", `no resource has such an address; they are ${shapes}`);
  }
  requireScope(reading.principal, "operations:read");
  return await readOutput(reading, uri, { operation, stream, offset: Number(output?.[3] ?? 0) });
}

/** The path in a URI, in which any byte may be encoded. @throws ApiError `invalid_path` */
function pathOf(encoded: string): GuestPath {
  const bytes = encoded.replace(/%([0-9A-Fa-f]{2})|\P{ASCII}+/gu, (sequence, hex: string | undefined) =>
    hex === undefined
      ? Buffer.from(sequence, "utf8").toString("latin1")
      : String.fromCharCode(Number.parseInt(hex, 16)),
  );
  return parseGuestPath(bytesToByteString(Buffer.from(bytes, "latin1")));
}

interface Place {
  readonly id: ImageId;
  readonly path: GuestPath;
  readonly offset: number;
}

async function readPath(reading: Reading, uri: string, { id, path, offset }: Place): Promise<Contents> {
  const { service, principal, signal } = reading;
  const target = { id, path, signal };
  const file = await service.inspect.open(principal, target).catch((error: unknown) => {
    if (error instanceof ApiError && error.code === "invalid_path") return null;
    throw error;
  });
  // Not a regular file: a directory, or something for which `list` throws.
  if (file === null) return await readDirectory(reading, uri, { id, path, offset });
  using _held = file.held;
  const { size } = file.entry;
  const start = Math.min(offset, size);
  const bytes = await file.read({ start, end: Math.min(start + READ_BYTES_MAX, size) });
  return contents(uri, bytes, { start, size, next: fileUri(id, path) });
}

async function readDirectory({ service, principal, signal }: Reading, uri: string, place: Place): Promise<Contents> {
  const { entries, held } = await service.inspect.list(principal, { ...place, signal });
  using _held = held;
  const lines: string[] = [];
  let at = 0;
  for await (const { name, type } of entries) {
    if (at++ < place.offset) continue;
    if (lines.length === LISTING_COUNT_MAX) {
      return listing(uri, lines, `${fileUri(place.id, place.path)}?offset=${place.offset + LISTING_COUNT_MAX}`);
    }
    lines.push(`${shownName(displayName(name))}${type === "d" ? "/" : ""}`);
  }
  return listing(uri, lines, null);
}

function listing(uri: string, lines: readonly string[], next: string | null): Contents {
  const more = next === null ? {} : { _meta: { "coppice/next": next } };
  return { contents: [{ uri, mimeType: TEXT_TYPE, text: lines.map((line) => `${line}\n`).join(""), ...more }] };
}

interface OutputPlace {
  readonly operation: OperationId;
  readonly stream: OutputStream;
  readonly offset: number;
}

async function readOutput(
  reading: Reading,
  uri: string,
  { operation, stream, offset }: OutputPlace,
): Promise<Contents> {
  const run = reading.service.operations.get(reading.principal, operation);
  const range = { offset, length: READ_BYTES_MAX };
  const { bytes, start, totalBytes: size } = await rangeOf(outputChunks(reading, run, stream), range);
  return contents(uri, bytes, { start, size, next: outputUri(operation, stream) });
}

interface Whole {
  /** of the part, in `bytes` */
  readonly start: number;
  /** of the whole content, in `bytes` */
  readonly size: number;
  /** address of the content, for that of its next part */
  readonly next: string;
}

/** A part of a content: text if all of it is, otherwise a blob. */
function contents(uri: string, bytes: Uint8Array, { start, size, next }: Whole): Contents {
  const whole = start + bytes.byteLength < size ? wholeCharacters(bytes) : bytes;
  const text = isBinary(whole) ? null : textOf(whole);
  const part = text === null ? bytes : whole;
  const end = start + part.byteLength;
  const more = end < size ? { "coppice/next": `${next}?offset=${end}` } : {};
  const content =
    text === null
      ? { mimeType: BINARY_TYPE, blob: Buffer.from(part).toString("base64") }
      : { mimeType: TEXT_TYPE, text };
  return { contents: [{ uri, ...content, _meta: { "coppice/size": size, "coppice/offset": start, ...more } }] };
}

/** Removes an incomplete last character. */
function wholeCharacters(bytes: Uint8Array): Uint8Array {
  let end = bytes.byteLength;
  for (let back = 1; back <= 3 && back <= bytes.byteLength; back++) {
    const byte = bytes[bytes.byteLength - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    if (length > back) end = bytes.byteLength - back;
    break;
  }
  return bytes.subarray(0, end);
}

function textOf(bytes: Uint8Array): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}
