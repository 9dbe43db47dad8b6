import { open } from "node:fs/promises";
import { join } from "node:path";
import type { LayerId } from "../../../src/domain/ids.ts";
import {
  INDEX_MAGIC,
  INDEX_RECORD_FIXED_BYTES,
  INDEX_VERSION,
  IndexFlag,
} from "../../../src/domain/tree/index-stream.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { publishLayer } from "../../../src/storage/layers/layers.ts";
import type { DataLayout } from "../../../src/storage/layout.ts";

const BLOCK_BYTES = 4096;
const EXTENT_BYTES = 24;
/** 2026-11-20T10:30:00Z */
export const MTIME_SECONDS = 1_795_170_600;

/** Part of a file that is on the disk; the gaps between parts are holes. */
export interface Data {
  readonly at: number;
  /** or a number of zeros, which use no space on the disk */
  readonly bytes: Uint8Array | number;
}

/** An entry of a hand-made layer. */
export interface LayerFixture {
  /** relative, in bytes or as text; the root has no entry */
  readonly path: string | Buffer;
  readonly type: "f" | "d" | "l" | "p" | "c" | "s" | "w";
  readonly mode?: number;
  readonly target?: string | Buffer;
  /** of a file: all of it, or its parts and its size */
  readonly content?: string | Uint8Array;
  readonly parts?: readonly Data[];
  readonly size?: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly mtimeSeconds?: number;
  readonly mtimeNanoseconds?: number;
  readonly xattrs?: readonly (readonly [name: string, value: string | Uint8Array])[];
  readonly rdev?: readonly [number, number];
  /** another name of the file at this path, which precedes it */
  readonly linkOf?: string;
  readonly nlink?: number;
  readonly opaque?: boolean;
}

export interface MadeLayer {
  readonly id: LayerId;
  readonly diskBytes: number;
  readonly entryCount: number;
}

/** Writes a disk with the files' bytes and the index that an agent would have sent, and publishes both. */
export async function makeLayer(layout: DataLayout, fixtures: readonly LayerFixture[]): Promise<MadeLayer> {
  const id = Bun.randomUUIDv7() as LayerId;
  const temporaryDisk = join(layout.tmp, `${id}.disk`);
  const temporaryIndex = join(layout.tmp, `${id}.index`);
  const header = Buffer.alloc(8);
  header.writeUInt32LE(INDEX_MAGIC, 0);
  header.writeUInt32LE(INDEX_VERSION, 4);
  const stream = [header, record({ path: "", type: "d" }, [], 2)];
  let diskBytes = BLOCK_BYTES;
  {
    await using disk = await open(temporaryDisk, "wx");
    const inodes = new Map<string, { extents: Extents; inode: number; fixture: LayerFixture }>();
    for (const [index, fixture] of fixtures.entries()) {
      const original = fixture.linkOf === undefined ? undefined : inodes.get(fixture.linkOf);
      if (original !== undefined) {
        stream.push(record({ ...original.fixture, path: fixture.path }, original.extents, original.inode));
        continue;
      }
      const extents: Extents = [];
      inodes.set(String(fixture.path), { extents, inode: index + 3, fixture });
      for (const { at, bytes } of partsOf(fixture)) {
        const length = typeof bytes === "number" ? bytes : bytes.byteLength;
        if (length === 0) continue;
        if (typeof bytes !== "number") await disk.write(bytes, 0, length, diskBytes);
        extents.push({ logical: at, physical: diskBytes, length });
        diskBytes += Math.ceil(length / BLOCK_BYTES) * BLOCK_BYTES;
      }
      stream.push(record(fixture, extents, index + 3));
    }
    await disk.truncate(diskBytes);
  }
  const { entryCount } = await writeLayerIndex({ stream: chunks(stream), path: temporaryIndex, diskBytes });
  await publishLayer(layout, { id, temporaryDisk, temporaryIndex });
  return { id, diskBytes, entryCount };
}

type Extents = { logical: number; physical: number; length: number }[];

function partsOf(fixture: LayerFixture): readonly Data[] {
  if (fixture.parts !== undefined) return fixture.parts;
  return fixture.content === undefined ? [] : [{ at: 0, bytes: bytesOf(fixture.content) }];
}

function bytesOf(content: string | Uint8Array): Uint8Array {
  return typeof content === "string" ? Buffer.from(content) : content;
}

function record(
  fixture: LayerFixture,
  extents: readonly { logical: number; physical: number; length: number }[],
  inode: number,
): Buffer {
  const path = Buffer.isBuffer(fixture.path) ? fixture.path : Buffer.from(fixture.path);
  const target = Buffer.from((fixture.target ?? "") as string);
  const content = fixture.content === undefined ? 0 : bytesOf(fixture.content).byteLength;
  const size = fixture.type === "l" ? target.length : (fixture.size ?? content);
  const fixed = Buffer.alloc(INDEX_RECORD_FIXED_BYTES);
  const xattrs = (fixture.xattrs ?? []).map(([name, value]) => xattr(Buffer.from(name), Buffer.from(value)));
  fixed.write(fixture.type, 0, "latin1");
  fixed.writeUInt8(fixture.opaque ? IndexFlag.opaque : 0, 1);
  fixed.writeUInt16LE(xattrs.length, 2);
  fixed.writeUInt32LE(fixture.mode ?? (fixture.type === "d" ? 0o755 : 0o644), 4);
  fixed.writeUInt32LE(fixture.uid ?? 0, 8);
  fixed.writeUInt32LE(fixture.gid ?? 0, 12);
  fixed.writeUInt32LE(fixture.nlink ?? (fixture.type === "d" ? 2 : 1), 16);
  fixed.writeUInt32LE(fixture.mtimeNanoseconds ?? 0, 20);
  fixed.writeBigUInt64LE(BigInt(inode), 24);
  fixed.writeBigUInt64LE(BigInt(size), 32);
  fixed.writeBigInt64LE(BigInt(fixture.mtimeSeconds ?? MTIME_SECONDS), 40);
  fixed.writeUInt32LE(fixture.rdev?.[0] ?? 0, 48);
  fixed.writeUInt32LE(fixture.rdev?.[1] ?? 0, 52);
  fixed.writeUInt32LE(path.length, 56);
  fixed.writeUInt32LE(target.length, 60);
  fixed.writeUInt32LE(extents.length, 64);
  const table = Buffer.alloc(extents.length * EXTENT_BYTES);
  for (const [index, { logical, physical, length }] of extents.entries()) {
    table.writeBigUInt64LE(BigInt(logical), index * EXTENT_BYTES);
    table.writeBigUInt64LE(BigInt(physical), index * EXTENT_BYTES + 8);
    table.writeBigUInt64LE(BigInt(length), index * EXTENT_BYTES + 16);
  }
  const body = Buffer.concat([fixed, path, target, ...xattrs, table]);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(body.length);
  return Buffer.concat([length, body]);
}

function xattr(name: Buffer, value: Buffer): Buffer {
  const header = Buffer.alloc(8);
  header.writeUInt16LE(name.length, 0);
  header.writeUInt32LE(value.length, 4);
  return Buffer.concat([header, name, value]);
}

async function* chunks(parts: readonly Buffer[]): AsyncGenerator<Uint8Array> {
  for (const part of parts) yield part;
}
