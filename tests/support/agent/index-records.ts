import {
  INDEX_MAGIC,
  INDEX_RECORD_BYTES_MAX,
  INDEX_RECORD_FIXED_BYTES,
  INDEX_VERSION,
} from "../../../src/domain/tree/index-stream.ts";
import { AgentFrame, HostFrame, Stream } from "../../../src/vm/agent/protocol.ts";
import { type Frame, frame, type NativeAgent, u16, u32 } from "./native-agent.ts";

/** The session of every index request. */
export const INDEX_SESSION = 6;

/** The stream of an index and its last frame, or the frame that exceeded `bytesMax`; grants credit as it is used. */
export async function readIndex(
  agent: NativeAgent,
  disk: number,
  bytesMax = Number.POSITIVE_INFINITY,
): Promise<{ readonly stream: Buffer; readonly last: Frame }> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  agent.send(frame(HostFrame.index, INDEX_SESSION, u16(disk)));
  for (;;) {
    const last = await agent.next();
    if (last.type !== AgentFrame.output || bytes > bytesMax) return { stream: Buffer.concat(chunks), last };
    if (last.payload.readUInt32LE(0) !== Stream.stdout) throw new Error("output of another stream");
    const chunk = last.payload.subarray(4);
    bytes += chunk.length;
    chunks.push(chunk);
    agent.send(frame(HostFrame.window, INDEX_SESSION, u32(Stream.stdout), u32(chunk.length)));
  }
}

export interface IndexRecord {
  readonly type: string;
  readonly opaque: boolean;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly nlink: number;
  readonly mtimeNs: bigint;
  readonly inode: bigint;
  readonly size: bigint;
  readonly device: readonly [major: number, minor: number];
  /** as latin1, which preserves every byte */
  readonly path: string;
  readonly target: string;
  readonly xattrs: Readonly<Record<string, string>>;
  readonly extents: { logical: bigint; physical: bigint; length: bigint }[];
}

function parseRecord(bytes: Buffer): IndexRecord {
  const xattrs: Record<string, string> = {};
  const extents = [];
  let at = INDEX_RECORD_FIXED_BYTES;
  const text = (length: number) => {
    at += length;
    return bytes.toString("latin1", at - length, at);
  };
  const path = text(bytes.readUInt32LE(56));
  const target = text(bytes.readUInt32LE(60));
  for (let left = bytes.readUInt16LE(2); left > 0; left--) {
    const [nameBytes, valueBytes] = [bytes.readUInt16LE(at), bytes.readUInt32LE(at + 4)];
    at += 8;
    const name = text(nameBytes);
    xattrs[name] = text(valueBytes);
  }
  for (let left = bytes.readUInt32LE(64); left > 0; left--, at += 24) {
    const [logical, physical] = [bytes.readBigUInt64LE(at), bytes.readBigUInt64LE(at + 8)];
    extents.push({ logical, physical, length: bytes.readBigUInt64LE(at + 16) });
  }
  if (at !== bytes.length || bytes.readUInt32LE(68) !== 0) throw new Error(`a record with a wrong length: ${path}`);
  return {
    type: String.fromCharCode(bytes.readUInt8(0)),
    opaque: bytes.readUInt8(1) === 1,
    mode: bytes.readUInt32LE(4),
    uid: bytes.readUInt32LE(8),
    gid: bytes.readUInt32LE(12),
    nlink: bytes.readUInt32LE(16),
    mtimeNs: bytes.readBigInt64LE(40) * 1_000_000_000n + BigInt(bytes.readUInt32LE(20)),
    inode: bytes.readBigUInt64LE(24),
    size: bytes.readBigUInt64LE(32),
    device: [bytes.readUInt32LE(48), bytes.readUInt32LE(52)],
    path,
    target,
    xattrs,
    extents,
  };
}

/** Reads an index stream; records of more extents are joined with the previous one, and counted in `more`. */
export function parseIndex(stream: Buffer): { entries: IndexRecord[]; more: number } {
  if (stream.readUInt32LE(0) !== INDEX_MAGIC || stream.readUInt32LE(4) !== INDEX_VERSION) throw new Error("no index");
  const entries: IndexRecord[] = [];
  let more = 0;
  for (let at = 8; at < stream.length; ) {
    const length = stream.readUInt32LE(at);
    if (length > INDEX_RECORD_BYTES_MAX || at + 4 + length > stream.length) throw new Error("a record too long");
    const record = parseRecord(stream.subarray(at + 4, at + 4 + length));
    at += 4 + length;
    if (record.type === "x") {
      entries.at(-1)?.extents.push(...record.extents);
      more += 1;
    } else {
      entries.push(record);
    }
  }
  return { entries, more };
}
