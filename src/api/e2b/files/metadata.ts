import { isUtf8 } from "node:buffer";
import { ApiError } from "../../../domain/errors.ts";
import type { GuestEntry } from "../../../domain/tree/guest-file.ts";
import { type ByteString, displayName, isUtf8 as isText } from "../../../domain/tree/guest-path.ts";

const FIELD_PREFIX = "x-metadata-";
/** Metadata of this dialect are attributes with this prefix. */
const ATTRIBUTE_PREFIX = "user.e2b.";
const ATTRIBUTE_NAME_BYTES_MAX = 255;
/** Limit of the names and values of all attributes of a file: a block of most file systems, in `bytes`. */
const METADATA_BYTES_MAX = 4096;
const PRINTABLE = /^[\x20-\x7e]*$/;

/**
 * The attributes for the metadata of a request, which are in fields `X-Metadata-KEY`.
 * @throws ApiError `validation_error`
 */
export function attributesIn(headers: Headers): Map<ByteString, Uint8Array> {
  const attributes = new Map<ByteString, Uint8Array>();
  let totalBytes = 0;
  for (const [field, value] of headers) {
    if (!field.startsWith(FIELD_PREFIX) || field.length === FIELD_PREFIX.length) continue;
    const name = `${ATTRIBUTE_PREFIX}${field.slice(FIELD_PREFIX.length)}` as ByteString;
    if (!PRINTABLE.test(value)) throw invalid(`${field} must have printable ASCII characters only`);
    if (name.length > ATTRIBUTE_NAME_BYTES_MAX) {
      throw invalid(`a key must have at most ${ATTRIBUTE_NAME_BYTES_MAX - ATTRIBUTE_PREFIX.length} bytes`);
    }
    totalBytes += name.length + value.length;
    attributes.set(name, Buffer.from(value, "latin1"));
  }
  if (totalBytes <= METADATA_BYTES_MAX) return attributes;
  throw invalid(`its ${totalBytes} bytes are more than ${METADATA_BYTES_MAX}`);
}

/** The attributes of an entry that are metadata and not among `attributes`, to be removed. */
export function staleOf(entry: GuestEntry, attributes: ReadonlyMap<ByteString, Uint8Array>): Map<ByteString, null> {
  const names = [...entry.attributes.keys()].filter((name) => isMetadata(name) && !attributes.has(name));
  return new Map(names.map((name) => [name, null]));
}

/** The metadata of an entry; null: none. Programs of the guest may have set any bytes, of which only text is shown. */
export function metadataOf({ attributes }: Pick<GuestEntry, "attributes">): Readonly<Record<string, string>> | null {
  const texts = [...attributes].filter(([name, value]) => isMetadata(name) && isText(name) && isUtf8(value));
  if (texts.length === 0) return null;
  return Object.fromEntries(
    texts.map(([name, value]) => [
      displayName(name).slice(ATTRIBUTE_PREFIX.length),
      Buffer.from(value).toString("utf8"),
    ]),
  );
}

function isMetadata(name: ByteString): boolean {
  return name.startsWith(ATTRIBUTE_PREFIX);
}

function invalid(what: string): ApiError {
  return new ApiError("validation_error", `invalid metadata: ${what}`);
}
