import type { DerivedEventType, LogEvent, LogEventType } from "../../domain/log-event.ts";
import type { OutputStream } from "../../domain/output.ts";

/*
 * The file of an event log: FILE_MAGIC, then one record after another. A record is a header of 28 bytes and its
 * payload; everything is little-endian:
 *
 *   u32 CRC-32 of the rest of the record, u32 length of the payload, u32 id, u32 process or NO_SPID,
 *   u64 ns since the epoch, u8 type, 3 bytes zero
 *
 * Ids count from 0 without gaps; a record has the last 32 bits of its id. A crash may leave bytes after the last whole record;
 * they are not part of the log. The segments of a ring have records only: their names have the position of the first one.
 */
export const FILE_MAGIC = Buffer.from("coppice events1\n", "latin1");
export const HEADER_BYTES = 28;
/** Longest payload of an output, in `bytes`. */
export const OUTPUT_PAYLOAD_BYTES_MAX = 16_384;
/** Longest payload of any record, in `bytes`. */
export const PAYLOAD_BYTES_MAX = 32_768;

const NO_SPID = 0xffff_ffff;

/** Types of the events that are stored. */
export type RecordType = Exclude<LogEventType, DerivedEventType>;

/** The header of a record without its sizes and its checksum. */
export type RecordHead = Pick<LogEvent, "id" | "timeNs" | "spid"> & { readonly type: RecordType };

/** Numbers of the types in a file; they never change. */
const TYPE_CODES: Readonly<Record<RecordType, number>> = {
  init: 1,
  progress: 2,
  spawn: 3,
  stdin: 4,
  stdout: 5,
  stderr: 6,
  truncated: 7,
  size_cap: 8,
  exit: 9,
  network: 10,
  checkpoint: 11,
  shutdown: 12,
  state: 13,
  ends_soon: 14,
  network_policy: 15,
  adopted: 16,
  fork: 17,
};
const TYPES: ReadonlyMap<number, RecordType> = new Map(
  Object.entries(TYPE_CODES).map(([type, code]) => [code, type as RecordType]),
);

/** Writes the header of a record that has its payload already. */
export function sealRecord(record: Buffer, { id, timeNs, spid, type }: RecordHead): void {
  record.writeUInt32LE(record.byteLength - HEADER_BYTES, 4);
  record.writeUInt32LE(id >>> 0, 8);
  record.writeUInt32LE(spid ?? NO_SPID, 12);
  record.writeBigUInt64LE(timeNs, 16);
  record.writeUInt32LE(TYPE_CODES[type], 24);
  record.writeUInt32LE(Bun.hash.crc32(record.subarray(4)), 0);
}

/** Size of the payload of the record at `offset`; null when there is no record. */
export function readSize(bytes: Buffer, offset: number, id: number): number | null {
  if (bytes.byteLength - offset < HEADER_BYTES) return null;
  const payloadBytes = bytes.readUInt32LE(offset + 4);
  if (payloadBytes > PAYLOAD_BYTES_MAX || bytes.readUInt32LE(offset + 8) !== id >>> 0) return null;
  return TYPES.has(bytes.readUInt32LE(offset + 24)) ? payloadBytes : null;
}

/** The stream of the record at `offset`, which must be one; null when it is not an output. */
export function readStream(bytes: Buffer, offset: number): OutputStream | null {
  const code = bytes.readUInt32LE(offset + 24);
  if (code === TYPE_CODES.stdout) return "stdout";
  return code === TYPE_CODES.stderr ? "stderr" : null;
}

/** The process number of the record at `offset`, which must be one; null when it does not belong to a process. */
export function readSpid(bytes: Buffer, offset: number): number | null {
  const spid = bytes.readUInt32LE(offset + 12);
  return spid === NO_SPID ? null : spid;
}

/** Reads the record at `offset`. "partial": its end is missing. "damaged": no writer wrote it. */
export function readRecord(bytes: Buffer, offset: number, id: number): LogEvent | "partial" | "damaged" {
  if (bytes.byteLength - offset < HEADER_BYTES) return "partial";
  const payloadBytes = readSize(bytes, offset, id);
  const type = TYPES.get(bytes.readUInt32LE(offset + 24));
  if (payloadBytes === null || type === undefined) return "damaged";
  const end = offset + HEADER_BYTES + payloadBytes;
  if (bytes.byteLength < end) return "partial";
  if (Bun.hash.crc32(bytes.subarray(offset + 4, end)) !== bytes.readUInt32LE(offset)) return "damaged";
  const timeNs = bytes.readBigUInt64LE(offset + 16);
  return { id, timeNs, spid: readSpid(bytes, offset), type, payload: bytes.subarray(offset + HEADER_BYTES, end) };
}
