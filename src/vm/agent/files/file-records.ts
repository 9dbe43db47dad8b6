import {
  type GuestEntry,
  type GuestFileEvent,
  type GuestUser,
  USER_NAME_BYTES_MAX,
} from "../../../domain/tree/guest-file.ts";
import {
  type ByteString,
  bytesToByteString,
  GUEST_NAME_BYTES_MAX,
  GUEST_PATH_BYTES_MAX,
} from "../../../domain/tree/guest-path.ts";
import type { EntryType } from "../../../domain/tree/listing.ts";
import { AgentProtocolError } from "../errors.ts";
import { viewOf } from "../frames.ts";
import {
  FILE_ATTRIBUTES_BYTES_MAX,
  FILE_ENTRY_FIXED_BYTES,
  FILE_PROGRESS_BYTES,
  FILE_USER_FIXED_BYTES,
  FILE_WATCH_FIXED_BYTES,
  FileEvent,
} from "../protocol.ts";

/* The records in the streams of FILE_OPEN. Every byte may be hostile. */

const ENTRY_BYTES_MAX =
  FILE_ENTRY_FIXED_BYTES + 2 * GUEST_PATH_BYTES_MAX + 2 * USER_NAME_BYTES_MAX + FILE_ATTRIBUTES_BYTES_MAX;
/** Longest field of a user: that of a line in the guest's passwd. */
const USER_FIELD_BYTES_MAX = 4096;
const USER_GROUPS_COUNT_MAX = 1024;
const USER_BYTES_MAX = FILE_USER_FIXED_BYTES + 4 * USER_GROUPS_COUNT_MAX + 3 * USER_FIELD_BYTES_MAX;
const WATCH_BYTES_MAX = FILE_WATCH_FIXED_BYTES + GUEST_PATH_BYTES_MAX;

const TYPE_OF: ReadonlyMap<number, EntryType> = new Map([
  [0o100_000, "f"],
  [0o040_000, "d"],
  [0o120_000, "l"],
  [0o060_000, "b"],
  [0o020_000, "c"],
  [0o010_000, "p"],
  [0o140_000, "s"],
]);
const TYPE_BITS = 0o170_000;
/** The size of a file that has none. */
const NO_SIZE = 0xffff_ffff_ffff_ffffn;
/** Largest size of an entry. A sparse file of a guest can have a larger one. */
const SIZE_MAX = BigInt(Number.MAX_SAFE_INTEGER);

const EVENT_OF: ReadonlyMap<number, GuestFileEvent["type"]> = new Map([
  [FileEvent.create, "create"],
  [FileEvent.write, "write"],
  [FileEvent.remove, "remove"],
  [FileEvent.renameFrom, "rename_from"],
  [FileEvent.renameTo, "rename_to"],
  [FileEvent.chmod, "chmod"],
  [FileEvent.overflow, "overflow"],
  [FileEvent.ready, "ready"],
  [FileEvent.gone, "gone"],
]);

function isEntryLength(length: number): boolean {
  return length === FILE_PROGRESS_BYTES || (length >= FILE_ENTRY_FIXED_BYTES && length <= ENTRY_BYTES_MAX);
}

function isWatchLength(length: number): boolean {
  return length >= FILE_WATCH_FIXED_BYTES && length <= WATCH_BYTES_MAX;
}

function isUserLength(length: number): boolean {
  return length >= FILE_USER_FIXED_BYTES && length <= USER_BYTES_MAX;
}

const LENGTHS = { entry: isEntryLength, watch: isWatchLength, user: isUserLength };
/** The kind of record that a stream consists of. */
export type RecordKind = keyof typeof LENGTHS;

/** True for a record which says only that the guest works. */
export function isProgress(record: Uint8Array): boolean {
  return record.byteLength === FILE_PROGRESS_BYTES;
}

/** Which paths the records of a stream may have. */
export type PathForm = "requested" | "relative";

/** Splits a stream into its records, and the bytes after them. Keeps at most one record. */
export class RecordReader {
  readonly #isLength: (length: number) => boolean;
  #bytes: Uint8Array = new Uint8Array();

  constructor(kind: RecordKind) {
    this.#isLength = LENGTHS[kind];
  }

  /** False while a part of a record is kept. */
  get isBetweenRecords(): boolean {
    return this.#bytes.byteLength === 0;
  }

  /** Adds bytes of the stream. All complete records must be taken before more are added. */
  push(chunk: Uint8Array): void {
    this.#bytes = this.isBetweenRecords ? chunk : Buffer.concat([this.#bytes, chunk]);
  }

  /** The next complete record; null: more bytes are needed. @throws AgentProtocolError for an impossible length */
  take(): Uint8Array | null {
    const bytes = this.#bytes;
    if (bytes.byteLength < 4) return null;
    const length = viewOf(bytes).getUint32(0, true);
    if (!this.#isLength(length)) throw new AgentProtocolError(`a record of ${length} bytes`);
    if (bytes.byteLength < length) return null;
    this.#bytes = bytes.subarray(length);
    return bytes.subarray(0, length);
  }

  /** The bytes after the records that were taken; none are kept. */
  rest(): Uint8Array {
    const rest = this.#bytes;
    this.#bytes = new Uint8Array();
    return rest;
  }
}

/** @throws AgentProtocolError for a record that an honest agent never sends */
export function parseEntry(record: Uint8Array, form: PathForm): GuestEntry {
  if (isProgress(record)) throw malformed("no entry");
  const view = viewOf(record);
  const modeAndType = view.getUint32(4, true);
  const type = TYPE_OF.get(modeAndType & TYPE_BITS);
  if (type === undefined || modeAndType > 0o177_777) throw malformed(`the mode ${modeAndType.toString(8)}`);
  const size = view.getBigUint64(16, true);
  const fields = new Fields(record, FILE_ENTRY_FIXED_BYTES);
  const path = fields.text(view.getUint16(44, true), GUEST_PATH_BYTES_MAX);
  const target = fields.text(view.getUint16(46, true), GUEST_PATH_BYTES_MAX);
  const user = fields.text(view.getUint16(48, true), USER_NAME_BYTES_MAX);
  const group = fields.text(view.getUint16(50, true), USER_NAME_BYTES_MAX);
  const attributes = parseAttributes(fields.bytes(view.getUint32(52, true)));
  fields.end();
  checkPath(path, form);
  return {
    path,
    type,
    mode: modeAndType & 0o7777,
    uid: view.getUint32(8, true),
    gid: view.getUint32(12, true),
    user,
    group,
    size: size === NO_SIZE ? null : Number(size < SIZE_MAX ? size : SIZE_MAX),
    mtimeNs: view.getBigInt64(24, true),
    inode: view.getBigUint64(32, true),
    nlink: view.getUint32(40, true),
    target,
    attributes,
  };
}

/**
 * An event of a watch; null: all that happened before a sync is reported.
 * @throws AgentProtocolError for a record that an honest agent never sends
 */
export function parseFileEvent(record: Uint8Array): GuestFileEvent | null {
  const view = viewOf(record);
  const number = view.getUint32(4, true);
  if (number === FileEvent.synced) return null;
  const type = EVENT_OF.get(number);
  if (type === undefined || view.getUint16(14, true) !== 0) throw malformed("an unknown type of event");
  const fields = new Fields(record, FILE_WATCH_FIXED_BYTES);
  const path = fields.text(view.getUint16(12, true), GUEST_PATH_BYTES_MAX);
  fields.end();
  checkPath(path, "relative");
  return { type, cookie: view.getUint32(8, true), path };
}

/** @throws AgentProtocolError for a record that an honest agent never sends */
export function parseUser(record: Uint8Array): GuestUser {
  const view = viewOf(record);
  const fields = new Fields(record, FILE_USER_FIXED_BYTES);
  fields.bytes(4 * view.getUint16(18, true));
  const [name, home, shell] = [12, 14, 16].map((at) => fields.text(view.getUint16(at, true), USER_FIELD_BYTES_MAX)) as [
    ByteString,
    ByteString,
    ByteString,
  ];
  fields.end();
  if (!home.startsWith("/")) throw malformed("a home that is not absolute");
  return { name, uid: view.getUint32(4, true), gid: view.getUint32(8, true), home, shell };
}

function parseAttributes(bytes: Uint8Array): Map<ByteString, Uint8Array> {
  const attributes = new Map<ByteString, Uint8Array>();
  const fields = new Fields(bytes, 0);
  while (!fields.isAtEnd) {
    const head = viewOf(fields.bytes(4));
    const name = fields.text(head.getUint16(0, true), GUEST_NAME_BYTES_MAX);
    if (name === "" || attributes.has(name)) throw malformed("an attribute without a name of its own");
    // A copy: the record is a view of a larger chunk.
    attributes.set(name, fields.bytes(head.getUint16(2, true)).slice());
  }
  return attributes;
}

/** A relative path must not lead out of the directory, and must be normalised. */
function checkPath(path: ByteString, form: PathForm): void {
  if (form === "requested" || path === "") return;
  const isNormal = path.split("/").every((part) => part !== "" && part !== "." && part !== "..");
  if (!isNormal) throw malformed("a path that leads out of its directory");
}

/** Reads the variable fields of a record, one after the other. */
class Fields {
  readonly #bytes: Uint8Array;
  #offset: number;

  constructor(bytes: Uint8Array, offset: number) {
    this.#bytes = bytes;
    this.#offset = offset;
  }

  get isAtEnd(): boolean {
    return this.#offset === this.#bytes.byteLength;
  }

  bytes(length: number): Uint8Array {
    const end = this.#offset + length;
    if (end > this.#bytes.byteLength) throw malformed("a field that is longer than its record");
    const field = this.#bytes.subarray(this.#offset, end);
    this.#offset = end;
    return field;
  }

  text(length: number, bytesMax: number): ByteString {
    const text = bytesToByteString(this.bytes(length));
    if (length > bytesMax || text.includes("\0")) throw malformed("a text that is too long, or has a NUL");
    return text;
  }

  end(): void {
    if (!this.isAtEnd) throw malformed("bytes after its last field");
  }
}

function malformed(what: string): AgentProtocolError {
  return new AgentProtocolError(`a record with ${what}`);
}
