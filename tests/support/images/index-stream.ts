import {
  INDEX_MAGIC,
  INDEX_RECORD_FIXED_BYTES,
  INDEX_VERSION,
  IndexFlag,
} from "../../../src/domain/tree/index-stream.ts";

/** `[logical, physical, length]` in bytes. */
export type TestExtent = readonly [number, number, number];

/** One record of an index stream; absent fields have ordinary values. */
export interface TestRecord {
  readonly path: string;
  /** one of "dflbcpsw", or "x" for more extents */
  readonly type: string;
  readonly opaque?: boolean;
  readonly flags?: number;
  readonly mode?: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly nlink?: number;
  readonly inode?: bigint;
  readonly size?: bigint;
  readonly mtimeSeconds?: bigint;
  readonly mtimeNanoseconds?: number;
  readonly rdev?: readonly [number, number];
  readonly target?: string;
  readonly xattrs?: readonly (readonly [name: string, value: string])[];
  readonly extents?: readonly TestExtent[];
}

/** A record as the agent writes it, after its length; `path` and `target` are byte strings. */
export function encodeStreamRecord(record: TestRecord): Buffer {
  const isMore = record.type === "x";
  const path = Buffer.from(record.path, "latin1");
  const target = Buffer.from(record.target ?? "", "latin1");
  const xattrs = Buffer.concat((record.xattrs ?? []).map(([name, value]) => encodeXattr(name, value)));
  const extents = Buffer.concat((record.extents ?? []).map(encodeExtent));
  const fixed = Buffer.alloc(INDEX_RECORD_FIXED_BYTES);
  fixed.write(record.type, 0, "latin1");
  fixed.writeUInt8(record.flags ?? (record.opaque ? IndexFlag.opaque : 0), 1);
  fixed.writeUInt16LE(record.xattrs?.length ?? 0, 2);
  fixed.writeUInt32LE(record.mode ?? (isMore ? 0 : 0o644), 4);
  fixed.writeUInt32LE(record.uid ?? 0, 8);
  fixed.writeUInt32LE(record.gid ?? 0, 12);
  fixed.writeUInt32LE(record.nlink ?? (isMore ? 0 : 1), 16);
  fixed.writeUInt32LE(record.mtimeNanoseconds ?? 0, 20);
  fixed.writeBigUInt64LE(record.inode ?? 0n, 24);
  fixed.writeBigUInt64LE(record.size ?? 0n, 32);
  fixed.writeBigInt64LE(record.mtimeSeconds ?? 0n, 40);
  fixed.writeUInt32LE(record.rdev?.[0] ?? 0, 48);
  fixed.writeUInt32LE(record.rdev?.[1] ?? 0, 52);
  fixed.writeUInt32LE(path.length, 56);
  fixed.writeUInt32LE(target.length, 60);
  fixed.writeUInt32LE(record.extents?.length ?? 0, 64);
  const body = Buffer.concat([fixed, path, target, xattrs, extents]);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(body.length);
  return Buffer.concat([length, body]);
}

export function encodeStreamHeader(magic = INDEX_MAGIC, version = INDEX_VERSION): Buffer {
  const header = Buffer.alloc(8);
  header.writeUInt32LE(magic, 0);
  header.writeUInt32LE(version, 4);
  return header;
}

/** A complete stream; the root is added when `records` does not begin with it. */
export function encodeStream(records: readonly TestRecord[]): Buffer {
  const root: TestRecord[] = records[0]?.path === "" ? [] : [{ path: "", type: "d", mode: 0o755 }];
  return Buffer.concat([encodeStreamHeader(), ...[...root, ...records].map(encodeStreamRecord)]);
}

/** The bytes in pieces of `pieceBytes`, as frames deliver them. */
export async function* pieces(bytes: Uint8Array, pieceBytes = 65_536): AsyncGenerator<Uint8Array> {
  for (let offset = 0; offset < bytes.length; offset += pieceBytes) yield bytes.subarray(offset, offset + pieceBytes);
}

function encodeXattr(name: string, value: string): Buffer {
  const header = Buffer.alloc(8);
  header.writeUInt16LE(name.length, 0);
  header.writeUInt32LE(value.length, 4);
  return Buffer.concat([header, Buffer.from(name, "latin1"), Buffer.from(value, "latin1")]);
}

function encodeExtent(extent: TestExtent): Buffer {
  const bytes = Buffer.alloc(24);
  extent.forEach((value, at) => {
    bytes.writeBigUInt64LE(BigInt(value), at * 8);
  });
  return bytes;
}
