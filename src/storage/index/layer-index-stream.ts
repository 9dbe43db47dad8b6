import {
  INDEX_MAGIC,
  INDEX_RECORD_BYTES_MAX,
  INDEX_RECORD_FIXED_BYTES,
  INDEX_VERSION,
  IndexFlag,
} from "../../domain/tree/index-stream.ts";
import {
  INDEX_PATH_BYTES_MAX,
  LINK_TARGET_BYTES_MAX,
  MTIME_SECONDS_MAX,
  XATTR_NAME_BYTES_MAX,
  XATTR_VALUE_BYTES_MAX,
  XATTRS_COUNT_MAX,
} from "../limits.ts";
import {
  EXTENT_BYTES,
  LayerIndexError,
  type RecordFields,
  readSafeU64,
  XATTR_HEADER_BYTES,
} from "./layer-index-format.ts";

const STREAM_HEADER_BYTES = 8;
const LENGTH_BYTES = 4;

/** Initial size of the splitter's buffer, in `bytes`. */
const SPLITTER_BYTES = 65_536;

/** Splits an index stream, which arrives in arbitrary chunks, into records. */
export class RecordSplitter {
  #buffer = Buffer.allocUnsafeSlow(SPLITTER_BYTES);
  /** the unread bytes are in `#buffer` from `#start` to `#end` */
  #start = 0;
  #end = 0;
  #started = false;

  /** memory use, in `bytes` */
  get heldBytes(): number {
    return this.#buffer.length;
  }

  /** Copies a chunk to the buffer. Records that `next` returned before become invalid. */
  push(chunk: Uint8Array): void {
    const restBytes = this.#end - this.#start;
    if (this.#end + chunk.byteLength > this.#buffer.length) {
      const neededBytes = restBytes + chunk.byteLength;
      const isLarger = neededBytes > this.#buffer.length;
      const buffer = isLarger ? Buffer.allocUnsafeSlow(Math.max(neededBytes, 2 * this.#buffer.length)) : this.#buffer;
      this.#buffer.copy(buffer, 0, this.#start, this.#end);
      this.#buffer = buffer;
      this.#start = 0;
      this.#end = restBytes;
    }
    this.#buffer.set(chunk, this.#end);
    this.#end += chunk.byteLength;
  }

  /**
   * The next complete record without its length field; null when more bytes are needed.
   * @throws LayerIndexError
   */
  next(): Buffer | null {
    if (!this.#started) {
      if (this.#end - this.#start < STREAM_HEADER_BYTES) return null;
      checkStreamHeader(this.#take(STREAM_HEADER_BYTES));
      this.#started = true;
    }
    if (this.#end - this.#start < LENGTH_BYTES) return null;
    const length = this.#buffer.readUInt32LE(this.#start);
    if (length < INDEX_RECORD_FIXED_BYTES || length > INDEX_RECORD_BYTES_MAX) {
      throw new LayerIndexError(`record of ${length} bytes`);
    }
    if (this.#end - this.#start < LENGTH_BYTES + length) return null;
    return this.#take(LENGTH_BYTES + length).subarray(LENGTH_BYTES);
  }

  /** @throws LayerIndexError when the stream ended before its header or inside a record */
  end(): void {
    if (!this.#started || this.#end > this.#start) throw new LayerIndexError("index stream is cut short");
  }

  #take(bytes: number): Buffer {
    this.#start += bytes;
    return this.#buffer.subarray(this.#start - bytes, this.#start);
  }
}

function checkStreamHeader(header: Buffer): void {
  if (header.readUInt32LE(0) !== INDEX_MAGIC) throw new LayerIndexError("not an index stream");
  const version = header.readUInt32LE(LENGTH_BYTES);
  if (version !== INDEX_VERSION) throw new LayerIndexError(`index stream of version ${version}`);
}

/** A record whose own fields are valid. Its relation to other records is not checked. */
export interface StreamRecord extends RecordFields {
  /** parts of the record's bytes, in order and without gaps */
  readonly path: Buffer;
  readonly target: Buffer;
  readonly xattrs: Buffer;
  readonly extents: Buffer;
}

export const RecordType = {
  file: "f".charCodeAt(0),
  directory: "d".charCodeAt(0),
  symlink: "l".charCodeAt(0),
  whiteout: "w".charCodeAt(0),
  moreExtents: "x".charCodeAt(0),
} as const;

const ENTRY_TYPES = new Set(Buffer.from("dflbcpsw", "latin1"));

/** @throws LayerIndexError with the path, shortened, and the reason */
export function refuse(path: Buffer, reason: string): never {
  throw new LayerIndexError(`${JSON.stringify(path.toString("utf8", 0, 200))}: ${reason}`);
}

/** Parses and checks a record. @throws LayerIndexError when it is invalid */
export function parseRecord(record: Buffer): StreamRecord {
  const type = record.readUInt8(0);
  const pathBytes = record.readUInt32LE(56);
  const targetBytes = record.readUInt32LE(60);
  const extentsBytes = record.readUInt32LE(64) * EXTENT_BYTES;
  const xattrsStart = INDEX_RECORD_FIXED_BYTES + pathBytes + targetBytes;
  const extentsStart = record.length - extentsBytes;
  if (xattrsStart > extentsStart) throw new LayerIndexError("parts of a record are longer than the record");
  const path = record.subarray(INDEX_RECORD_FIXED_BYTES, INDEX_RECORD_FIXED_BYTES + pathBytes);
  if (pathBytes > INDEX_PATH_BYTES_MAX) refuse(path, `path of ${pathBytes} bytes`);
  if (record.readUInt32LE(68) !== 0) refuse(path, "reserved field is not zero");
  const parts = {
    path,
    target: record.subarray(INDEX_RECORD_FIXED_BYTES + pathBytes, xattrsStart),
    xattrs: record.subarray(xattrsStart, extentsStart),
    extents: record.subarray(extentsStart),
  };
  if (type === RecordType.moreExtents) return { ...parseFields(record), ...checkMoreExtents(record, parts) };
  if (!ENTRY_TYPES.has(type)) refuse(path, `unknown type ${type}`);
  const fields = parseFields(record);
  checkFields(fields, parts);
  checkXattrs(parts.xattrs, fields.xattrCount, path);
  return { ...fields, ...parts };
}

function parseFields(record: Buffer): RecordFields {
  const seconds = record.readBigInt64LE(40);
  return {
    type: record.readUInt8(0),
    flags: record.readUInt8(1),
    xattrCount: record.readUInt16LE(2),
    mode: record.readUInt32LE(4),
    uid: record.readUInt32LE(8),
    gid: record.readUInt32LE(12),
    nlink: record.readUInt32LE(16),
    mtimeNanoseconds: record.readUInt32LE(20),
    inode: readSafeU64(record, 24) ?? Number.NaN,
    size: readSafeU64(record, 32) ?? Number.NaN,
    mtimeSeconds: Number(seconds),
    rdevMajor: record.readUInt32LE(48),
    rdevMinor: record.readUInt32LE(52),
  };
}

type Parts = Pick<StreamRecord, "path" | "target" | "xattrs" | "extents">;

function checkMoreExtents(record: Buffer, parts: Parts): Parts {
  const fixedIsZero = record.subarray(1, 64).every((byte) => byte === 0);
  if (!fixedIsZero || parts.xattrs.length > 0) throw new LayerIndexError("record of more extents has other fields");
  if (parts.extents.length === 0) throw new LayerIndexError("record of more extents has none");
  return parts;
}

function checkFields(fields: RecordFields, parts: Parts): void {
  const { path, target } = parts;
  if ((fields.flags & ~IndexFlag.opaque) !== 0) refuse(path, `unknown flags ${fields.flags}`);
  if (fields.flags !== 0 && fields.type !== RecordType.directory) refuse(path, "only a directory can be opaque");
  if (fields.mode > 0o7777) refuse(path, `mode ${fields.mode.toString(8)}`);
  if (fields.mtimeNanoseconds >= 1_000_000_000) refuse(path, `mtime of ${fields.mtimeNanoseconds} nanoseconds`);
  if (Math.abs(fields.mtimeSeconds) > MTIME_SECONDS_MAX) refuse(path, "mtime is out of range");
  if (Number.isNaN(fields.size)) refuse(path, "size is over 2^53-1");
  if (Number.isNaN(fields.inode)) refuse(path, "inode number is over 2^53-1");
  if (target.length > LINK_TARGET_BYTES_MAX) refuse(path, `target of ${target.length} bytes`);
  if (fields.type === RecordType.symlink ? target.length === 0 : target.length > 0) {
    refuse(path, "a symlink must have a target, and nothing else may");
  }
  if (target.includes(0)) refuse(path, "target has NUL");
  if (fields.type !== RecordType.file && parts.extents.length > 0) refuse(path, "only a file can have extents");
}

function checkXattrs(xattrs: Buffer, count: number, path: Buffer): void {
  if (count > XATTRS_COUNT_MAX) refuse(path, `${count} extended attributes`);
  let offset = 0;
  for (let left = count; left > 0; left--) {
    if (xattrs.length - offset < XATTR_HEADER_BYTES) refuse(path, "extended attributes are cut short");
    const nameBytes = xattrs.readUInt16LE(offset);
    const reserved = xattrs.readUInt16LE(offset + 2);
    const valueBytes = xattrs.readUInt32LE(offset + 4);
    const nameStart = offset + XATTR_HEADER_BYTES;
    offset = nameStart + nameBytes + valueBytes;
    if (reserved !== 0 || nameBytes === 0 || nameBytes > XATTR_NAME_BYTES_MAX || valueBytes > XATTR_VALUE_BYTES_MAX) {
      refuse(path, "malformed extended attribute");
    }
    if (offset > xattrs.length) refuse(path, "extended attributes are cut short");
    if (xattrs.subarray(nameStart, nameStart + nameBytes).includes(0))
      refuse(path, "extended attribute's name has NUL");
  }
  if (offset !== xattrs.length) refuse(path, "bytes left after the extended attributes");
}
