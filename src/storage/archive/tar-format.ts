import { type ByteString, byteStringToBytes, isUtf8 } from "../../domain/tree/guest-path.ts";

/*
 * POSIX pax archives. Names that fit are stored as bytes in the plain header, because every extractor takes them from
 * there unchanged. An extended header before it has everything that does not fit.
 */

export const TAR_BLOCK_BYTES = 512;
const NAME_BYTES_MAX = 100;
const NEWLINE = 0x0a;
/** Largest numbers in octal fields of 8 and of 12 bytes. */
const OCTAL_8_MAX = 0o7777777;
const OCTAL_12_MAX = 0o77777777777;
const NANOSECONDS_PER_SECOND_COUNT = 1_000_000_000;

/** Type of an entry in its header. */
export const TarType = {
  file: "0",
  link: "1",
  symlink: "2",
  char: "3",
  block: "4",
  directory: "5",
  fifo: "6",
} as const;
export type TarType = (typeof TarType)[keyof typeof TarType];

export interface TarEntry {
  /** ends in a slash for a directory */
  readonly path: ByteString;
  readonly type: TarType;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** length of the content after the header, in `bytes` */
  readonly size: number;
  readonly mtimeSeconds: number;
  readonly mtimeNanoseconds: number;
  readonly target: ByteString;
  readonly rdevMajor: number;
  readonly rdevMinor: number;
  /** additional records of the extended header, in order */
  readonly records: readonly PaxRecord[];
}

export type PaxRecord = readonly [key: string, value: Uint8Array | string];

/** The headers of an entry: an extended one if needed, and the plain one. */
export function encodeTarHeader(entry: TarEntry): Buffer {
  const records = [...recordsOf(entry), ...entry.records];
  if (records.length === 0) return plainHeader(entry);
  const size = records.reduce((bytes, record) => bytes + recordBytes(record), 0);
  const header = Buffer.alloc(TAR_BLOCK_BYTES + size + paddingOf(size) + TAR_BLOCK_BYTES);
  ustarBlock({ name: Buffer.from("./PaxHeaders/entry"), type: "x", mode: 0o644, size }).copy(header);
  let offset = TAR_BLOCK_BYTES;
  for (const record of records) offset = writeRecord(header, offset, record);
  plainHeader(entry).copy(header, header.length - TAR_BLOCK_BYTES);
  return header;
}

/** The two empty blocks that end an archive. */
export function tarEnd(): Buffer {
  return Buffer.alloc(2 * TAR_BLOCK_BYTES);
}

/** Number of `bytes` from the end of `size` bytes to the next block. */
export function paddingOf(size: number): number {
  return (TAR_BLOCK_BYTES - (size % TAR_BLOCK_BYTES)) % TAR_BLOCK_BYTES;
}

function recordsOf(entry: TarEntry): PaxRecord[] {
  const { path, target, size, uid, gid, mtimeSeconds, mtimeNanoseconds } = entry;
  const records: PaxRecord[] = [];
  const isLong = { path: path.length > NAME_BYTES_MAX, target: target.length > NAME_BYTES_MAX };
  // Extended headers are UTF-8 by default.
  if ((isLong.path && !isUtf8(path)) || (isLong.target && !isUtf8(target))) records.push(["hdrcharset", "BINARY"]);
  if (isLong.path) records.push(["path", byteStringToBytes(path)]);
  if (isLong.target) records.push(["linkpath", byteStringToBytes(target)]);
  if (size > OCTAL_12_MAX) records.push(["size", String(size)]);
  if (uid > OCTAL_8_MAX) records.push(["uid", String(uid)]);
  if (gid > OCTAL_8_MAX) records.push(["gid", String(gid)]);
  if (mtimeNanoseconds !== 0 || mtimeSeconds < 0 || mtimeSeconds > OCTAL_12_MAX) {
    records.push(["mtime", decimalTime(mtimeSeconds, mtimeNanoseconds)]);
  }
  return records;
}

/** Seconds as a decimal fraction. `nanoseconds` is positive for times before the epoch, too. */
function decimalTime(seconds: number, nanoseconds: number): string {
  if (nanoseconds === 0) return String(seconds);
  const isNegative = seconds < 0;
  const whole = isNegative ? -seconds - 1 : seconds;
  const fraction = isNegative ? NANOSECONDS_PER_SECOND_COUNT - nanoseconds : nanoseconds;
  return `${isNegative ? "-" : ""}${whole}.${String(fraction).padStart(9, "0").replace(/0+$/, "")}`;
}

/** Key of the record of an extended attribute, with "=" and "%" escaped as GNU tar does. */
export function xattrKey(name: ByteString): string {
  return `SCHILY.xattr.${name.replaceAll("%", "%25").replaceAll("=", "%3D")}`;
}

/** Length of `length key=value\n`, where the length includes its own digits. */
function recordBytes([key, value]: PaxRecord): number {
  const content = 3 + key.length + (typeof value === "string" ? Buffer.byteLength(value) : value.length);
  const length = content + String(content).length;
  return content + String(length).length > length ? length + 1 : length;
}

/** Writes a record and returns its end. */
function writeRecord(buffer: Buffer, offset: number, record: PaxRecord): number {
  const [key, value] = record;
  const end = offset + recordBytes(record);
  const start = offset + buffer.write(`${end - offset} ${key}=`, offset, "latin1");
  if (typeof value === "string") buffer.write(value, start);
  else buffer.set(value, start);
  buffer[end - 1] = NEWLINE;
  return end;
}

function plainHeader(entry: TarEntry): Buffer {
  return ustarBlock({
    name: byteStringToBytes(entry.path).subarray(0, NAME_BYTES_MAX),
    target: byteStringToBytes(entry.target).subarray(0, NAME_BYTES_MAX),
    type: entry.type,
    mode: entry.mode,
    uid: entry.uid > OCTAL_8_MAX ? 0 : entry.uid,
    gid: entry.gid > OCTAL_8_MAX ? 0 : entry.gid,
    size: entry.size > OCTAL_12_MAX ? 0 : entry.size,
    mtime: Math.max(0, Math.min(entry.mtimeSeconds, OCTAL_12_MAX)),
    rdevMajor: Math.min(entry.rdevMajor, OCTAL_8_MAX),
    rdevMinor: Math.min(entry.rdevMinor, OCTAL_8_MAX),
  });
}

interface UstarFields {
  readonly name: Buffer;
  readonly target?: Buffer;
  readonly type: string;
  readonly mode: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly size: number;
  readonly mtime?: number;
  readonly rdevMajor?: number;
  readonly rdevMinor?: number;
}

const CHECKSUM_OFFSET_BYTES = 148;
const CHECKSUM_BYTES = 8;

function ustarBlock(fields: UstarFields): Buffer {
  const block = Buffer.alloc(TAR_BLOCK_BYTES);
  const octal = (value: number, offset: number, bytes: number): void => {
    block.write(value.toString(8).padStart(bytes - 1, "0"), offset, "latin1");
  };
  fields.name.copy(block, 0);
  octal(fields.mode, 100, 8);
  octal(fields.uid ?? 0, 108, 8);
  octal(fields.gid ?? 0, 116, 8);
  octal(fields.size, 124, 12);
  octal(fields.mtime ?? 0, 136, 12);
  block.write(fields.type, 156, "latin1");
  fields.target?.copy(block, 157);
  block.write("ustar\x0000", 257, "latin1");
  octal(fields.rdevMajor ?? 0, 329, 8);
  octal(fields.rdevMinor ?? 0, 337, 8);
  block.fill(0x20, CHECKSUM_OFFSET_BYTES, CHECKSUM_OFFSET_BYTES + CHECKSUM_BYTES);
  let sum = 0;
  for (const byte of block) sum += byte;
  octal(sum, CHECKSUM_OFFSET_BYTES, CHECKSUM_BYTES - 1);
  return block;
}
