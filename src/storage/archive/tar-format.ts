import { type ByteString, byteStringToBytes, isUtf8 } from "../../domain/guest-path.ts";

/*
 * POSIX pax archives. Names go into the plain header as the bytes that they are wherever they fit, because every
 * reader takes them from there unchanged; whatever a plain header cannot say stands in an extended one before it.
 */

export const TAR_BLOCK_BYTES = 512;
const NAME_BYTES_MAX = 100;
const NEWLINE = 0x0a;
/** Largest number of an octal field of 8 bytes, and of 12. */
const OCTAL_8_MAX = 0o7777777;
const OCTAL_12_MAX = 0o77777777777;
const NANOSECONDS_PER_SECOND_COUNT = 1_000_000_000;

/** Kind of an archive's entry, as the header says it. */
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
  /** a directory's ends in a slash */
  readonly path: ByteString;
  readonly type: TarType;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** of what follows the header, in `bytes` */
  readonly size: number;
  readonly mtimeSeconds: number;
  readonly mtimeNanoseconds: number;
  readonly target: ByteString;
  readonly rdevMajor: number;
  readonly rdevMinor: number;
  /** more records of the extended header, in order */
  readonly records: readonly PaxRecord[];
}

export type PaxRecord = readonly [key: string, value: Uint8Array | string];

/** Everything that precedes an entry's content: the extended header where one is needed, and the plain one. */
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

/** Two empty blocks end an archive. */
export function tarEnd(): Buffer {
  return Buffer.alloc(2 * TAR_BLOCK_BYTES);
}

/** `bytes` from the end of `size` bytes to the next block. */
export function paddingOf(size: number): number {
  return (TAR_BLOCK_BYTES - (size % TAR_BLOCK_BYTES)) % TAR_BLOCK_BYTES;
}

function recordsOf(entry: TarEntry): PaxRecord[] {
  const { path, target, size, uid, gid, mtimeSeconds, mtimeNanoseconds } = entry;
  const records: PaxRecord[] = [];
  const isLong = { path: path.length > NAME_BYTES_MAX, target: target.length > NAME_BYTES_MAX };
  // Extended headers are UTF-8 unless they say otherwise.
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

/** Seconds with a fraction; nanoseconds count upwards, also before the epoch. */
function decimalTime(seconds: number, nanoseconds: number): string {
  if (nanoseconds === 0) return String(seconds);
  const isNegative = seconds < 0;
  const whole = isNegative ? -seconds - 1 : seconds;
  const fraction = isNegative ? NANOSECONDS_PER_SECOND_COUNT - nanoseconds : nanoseconds;
  return `${isNegative ? "-" : ""}${whole}.${String(fraction).padStart(9, "0").replace(/0+$/, "")}`;
}

/** Key of an extended attribute's record; what would end the key is written as GNU tar writes it. */
export function xattrKey(name: ByteString): string {
  return `SCHILY.xattr.${name.replaceAll("%", "%25").replaceAll("=", "%3D")}`;
}

/** Length of `length key=value\n`, where the length counts its own digits. */
function recordBytes([key, value]: PaxRecord): number {
  const content = 3 + key.length + (typeof value === "string" ? Buffer.byteLength(value) : value.length);
  const length = content + String(content).length;
  return content + String(length).length > length ? length + 1 : length;
}

/** Gives where the record ends. */
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
