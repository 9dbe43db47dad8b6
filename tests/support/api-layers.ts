import { open } from "node:fs/promises";
import { join } from "node:path";
import type { LayerId } from "../../src/domain/ids.ts";
import { INDEX_MAGIC, INDEX_RECORD_FIXED_BYTES, INDEX_VERSION } from "../../src/domain/index-stream.ts";
import { writeLayerIndex } from "../../src/storage/layer-index-writer.ts";
import { publishLayer } from "../../src/storage/layers.ts";
import type { DataLayout } from "../../src/storage/layout.ts";

const BLOCK_BYTES = 4096;
const EXTENT_BYTES = 24;
/** 2026-11-20T10:30:00Z */
export const MTIME_SECONDS = 1_795_170_600;

/** Part of a file that is on the disk; what lies between such parts is a hole. */
export interface Data {
  readonly at: number;
  readonly bytes: Uint8Array;
}

/** An entry of a hand-made layer. */
export interface LayerFixture {
  /** relative, in bytes or as text; the root is not given */
  readonly path: string | Buffer;
  readonly type: "f" | "d" | "l" | "p" | "c" | "w";
  readonly mode?: number;
  readonly target?: string;
  /** of a file: all of it, or its parts and its size */
  readonly content?: string | Uint8Array;
  readonly parts?: readonly Data[];
  readonly size?: number;
  readonly uid?: number;
  readonly mtimeNanoseconds?: number;
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
    for (const [index, fixture] of fixtures.entries()) {
      const extents: { logical: number; physical: number; length: number }[] = [];
      for (const { at, bytes } of partsOf(fixture)) {
        if (bytes.byteLength === 0) continue;
        await disk.write(bytes, 0, bytes.byteLength, diskBytes);
        extents.push({ logical: at, physical: diskBytes, length: bytes.byteLength });
        diskBytes += Math.ceil(bytes.byteLength / BLOCK_BYTES) * BLOCK_BYTES;
      }
      stream.push(record(fixture, extents, index + 3));
    }
    await disk.truncate(diskBytes);
  }
  const { entryCount } = await writeLayerIndex({ stream: chunks(stream), path: temporaryIndex, diskBytes });
  await publishLayer(layout, { id, temporaryDisk, temporaryIndex });
  return { id, diskBytes, entryCount };
}

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
  const target = Buffer.from(fixture.target ?? "");
  const content = fixture.content === undefined ? 0 : bytesOf(fixture.content).byteLength;
  const size = fixture.type === "l" ? target.length : (fixture.size ?? content);
  const fixed = Buffer.alloc(INDEX_RECORD_FIXED_BYTES);
  fixed.write(fixture.type, 0, "latin1");
  fixed.writeUInt32LE(fixture.mode ?? (fixture.type === "d" ? 0o755 : 0o644), 4);
  fixed.writeUInt32LE(fixture.uid ?? 0, 8);
  fixed.writeUInt32LE(fixture.type === "d" ? 2 : 1, 16);
  fixed.writeUInt32LE(fixture.mtimeNanoseconds ?? 0, 20);
  fixed.writeBigUInt64LE(BigInt(inode), 24);
  fixed.writeBigUInt64LE(BigInt(size), 32);
  fixed.writeBigInt64LE(BigInt(MTIME_SECONDS), 40);
  fixed.writeUInt32LE(path.length, 56);
  fixed.writeUInt32LE(target.length, 60);
  fixed.writeUInt32LE(extents.length, 64);
  const table = Buffer.alloc(extents.length * EXTENT_BYTES);
  for (const [index, { logical, physical, length }] of extents.entries()) {
    table.writeBigUInt64LE(BigInt(logical), index * EXTENT_BYTES);
    table.writeBigUInt64LE(BigInt(physical), index * EXTENT_BYTES + 8);
    table.writeBigUInt64LE(BigInt(length), index * EXTENT_BYTES + 16);
  }
  const body = Buffer.concat([fixed, path, target, table]);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(body.length);
  return Buffer.concat([length, body]);
}

async function* chunks(parts: readonly Buffer[]): AsyncGenerator<Uint8Array> {
  for (const part of parts) yield part;
}
