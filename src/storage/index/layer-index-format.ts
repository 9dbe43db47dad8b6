/*
 * The file format of a layer's index: a header, a record for each entry in the order of the stream, and a table sorted by
 * directory and name. All numbers are little-endian. The children of a directory are consecutive in the table, so a
 * look-up is a binary search for each component of the path.
 *
 *   header   see `encodeHeader`, HEADER_BYTES; its version applies to everything after it
 *   record   RECORD_FIXED_BYTES (see `encodeRecord`), name, target, xattrs and extents as in the stream
 *   table    u64 offset of the record, and two u32: for a directory, position of the first child and number of
 *            children; for a file, number of extents and zero; otherwise zeros. The first entry is the root.
 */

/** A guest's index stream or a stored index is invalid. The message says why. */
export class LayerIndexError extends Error {
  override readonly name = "LayerIndexError";
}

export const HEADER_BYTES = 64;
export const RECORD_FIXED_BYTES = 64;
export const TABLE_ENTRY_BYTES = 16;
/** Each: u64 logical, u64 physical, u64 length, in the stream and in the file. */
export const EXTENT_BYTES = 24;
/** u16 name length, u16 zero, u32 value length, in the stream and in the file. */
export const XATTR_HEADER_BYTES = 8;

const MAGIC = "coppidx\0";
/** The only readable version. Raise it for every change that readers of the previous version would misread. */
const FORMAT_VERSION = 2;
/** Offset in a header of the checksum of everything after the header. */
const BODY_CHECKSUM_OFFSET_BYTES = 40;

export interface IndexHeader {
  /** CRC-32 of everything after the header */
  readonly bodyChecksum: number;
  /** number of entries in the table, including the root */
  readonly tableCount: number;
  readonly tableOffset: number;
  readonly diskBytes: number;
  /** disk space of all files, in `bytes`; a hard-linked file counts once */
  readonly contentBytes: number;
}

/** A u64 as a number; null when it is not a safe integer. */
export function readSafeU64(buffer: Buffer, offset: number): number | null {
  const high = buffer.readUInt32LE(offset + 4);
  return high >= 0x20_00_00 ? null : high * 0x1_0000_0000 + buffer.readUInt32LE(offset);
}

export function writeSafeU64(buffer: Buffer, value: number, offset: number): void {
  buffer.writeUInt32LE(value % 0x1_0000_0000, offset);
  buffer.writeUInt32LE(Math.floor(value / 0x1_0000_0000), offset + 4);
}

export function encodeHeader(header: IndexHeader): Buffer {
  const bytes = Buffer.alloc(HEADER_BYTES);
  bytes.write(MAGIC, 0, "latin1");
  bytes.writeUInt32LE(FORMAT_VERSION, 8);
  bytes.writeUInt32LE(header.tableCount, 12);
  writeSafeU64(bytes, header.tableOffset, 16);
  writeSafeU64(bytes, header.diskBytes, 24);
  writeSafeU64(bytes, header.contentBytes, 32);
  bytes.writeUInt32LE(header.bodyChecksum, BODY_CHECKSUM_OFFSET_BYTES);
  bytes.writeUInt32LE(checksum(bytes), HEADER_BYTES - 4);
  return bytes;
}

/** @throws LayerIndexError when `bytes` is not the header of a complete index of `fileBytes` */
export function decodeHeader(bytes: Buffer, fileBytes: number): IndexHeader {
  if (bytes.length !== HEADER_BYTES || bytes.toString("latin1", 0, 8) !== MAGIC) {
    throw new LayerIndexError("not a layer index");
  }
  const version = bytes.readUInt32LE(8);
  if (version !== FORMAT_VERSION) throw new LayerIndexError(`layer index of version ${version} is not supported`);
  if (bytes.readUInt32LE(HEADER_BYTES - 4) !== checksum(bytes))
    throw new LayerIndexError("layer index header is damaged");
  const header = {
    bodyChecksum: bytes.readUInt32LE(BODY_CHECKSUM_OFFSET_BYTES),
    tableCount: bytes.readUInt32LE(12),
    tableOffset: readSafeU64(bytes, 16) ?? Number.NaN,
    diskBytes: readSafeU64(bytes, 24) ?? Number.NaN,
    contentBytes: readSafeU64(bytes, 32) ?? Number.NaN,
  };
  if (header.tableOffset + header.tableCount * TABLE_ENTRY_BYTES !== fileBytes) {
    throw new LayerIndexError("layer index is cut short");
  }
  return header;
}

function checksum(header: Buffer): number {
  return Bun.hash.crc32(header.subarray(0, HEADER_BYTES - 4));
}

/** The fixed part of a record, without lengths. */
export interface RecordFields {
  /** a letter of `EntryType` as a byte, or "w" for a whiteout */
  readonly type: number;
  readonly flags: number;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly nlink: number;
  readonly mtimeNanoseconds: number;
  readonly inode: number;
  readonly size: number;
  readonly mtimeSeconds: number;
  readonly rdevMajor: number;
  readonly rdevMinor: number;
  readonly xattrCount: number;
}

export interface RecordLengths {
  readonly nameBytes: number;
  readonly targetBytes: number;
  readonly xattrBytes: number;
}

/** Writes the fixed part of a record at `offset`. */
export function encodeRecord(buffer: Buffer, offset: number, fields: RecordFields, lengths: RecordLengths): void {
  buffer.writeUInt8(fields.type, offset);
  buffer.writeUInt8(fields.flags, offset + 1);
  buffer.writeUInt16LE(lengths.nameBytes, offset + 2);
  buffer.writeUInt32LE(fields.mode, offset + 4);
  buffer.writeUInt32LE(fields.uid, offset + 8);
  buffer.writeUInt32LE(fields.gid, offset + 12);
  buffer.writeUInt32LE(fields.nlink, offset + 16);
  buffer.writeUInt32LE(fields.mtimeNanoseconds, offset + 20);
  writeSafeU64(buffer, fields.inode, offset + 24);
  writeSafeU64(buffer, fields.size, offset + 32);
  buffer.writeDoubleLE(fields.mtimeSeconds, offset + 40);
  buffer.writeUInt32LE(fields.rdevMajor, offset + 48);
  buffer.writeUInt32LE(fields.rdevMinor, offset + 52);
  buffer.writeUInt16LE(lengths.targetBytes, offset + 56);
  buffer.writeUInt16LE(fields.xattrCount, offset + 58);
  buffer.writeUInt32LE(lengths.xattrBytes, offset + 60);
}

/** Reads the fixed part of a record from the start of `buffer`. */
export function decodeRecord(buffer: Buffer): RecordFields & RecordLengths {
  return {
    type: buffer.readUInt8(0),
    flags: buffer.readUInt8(1),
    nameBytes: buffer.readUInt16LE(2),
    mode: buffer.readUInt32LE(4),
    uid: buffer.readUInt32LE(8),
    gid: buffer.readUInt32LE(12),
    nlink: buffer.readUInt32LE(16),
    mtimeNanoseconds: buffer.readUInt32LE(20),
    inode: readSafeU64(buffer, 24) ?? 0,
    size: readSafeU64(buffer, 32) ?? 0,
    mtimeSeconds: buffer.readDoubleLE(40),
    rdevMajor: buffer.readUInt32LE(48),
    rdevMinor: buffer.readUInt32LE(52),
    targetBytes: buffer.readUInt16LE(56),
    xattrCount: buffer.readUInt16LE(58),
    xattrBytes: buffer.readUInt32LE(60),
  };
}
