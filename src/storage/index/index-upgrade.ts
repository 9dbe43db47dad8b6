import { chmod, chown, type FileHandle, open, rename, rm, stat } from "node:fs/promises";
import { syncPath } from "../../system/scratch.ts";
import { type Cancellation, Pacer } from "../pacer.ts";
import { decodeHeader, encodeHeader, FORMAT_VERSION, HEADER_BYTES, type IndexHeader } from "./layer-index-format.ts";

const PIECE_BYTES = 262_144;

/**
 * Checks the checksum of a stored index, because readers notice damage only in the parts that they read. True for a
 * version without a checksum.
 * @throws LayerIndexError when the file is not a complete index; the error of `cancellation`
 */
export async function isIndexIntact(path: string, cancellation: Cancellation | null = null): Promise<boolean> {
  await using file = await open(path, "r");
  const { bodyChecksum } = await headerOf(file);
  if (bodyChecksum === null) return true;
  const pacer = new Pacer(cancellation);
  let checksum = 0;
  for await (const piece of bodyOf(file, pacer)) checksum = Bun.hash.crc32(piece, checksum);
  return checksum === bodyChecksum;
}

/**
 * Rewrites a stored index of an older version in the current version, and replaces the file atomically. Readers that have
 * the old file open can go on. Returns false when the index has the current version.
 * @param temporary path of a new file on the same file system
 * @throws LayerIndexError when the file is not a complete index; the error of `cancellation`
 */
export async function upgradeIndex(
  path: string,
  temporary: string,
  cancellation: Cancellation | null = null,
): Promise<boolean> {
  await using source = await open(path, "r");
  const header = await headerOf(source);
  if (header.version === FORMAT_VERSION) return false;
  await using undo = new AsyncDisposableStack();
  {
    await using target = await open(temporary, "wx", 0o600);
    undo.defer(() => rm(temporary, { force: true }));
    const pacer = new Pacer(cancellation);
    let position = HEADER_BYTES;
    let bodyChecksum = 0;
    for await (const piece of bodyOf(source, pacer)) {
      bodyChecksum = Bun.hash.crc32(piece, bodyChecksum);
      await target.write(piece, 0, piece.length, position);
      position += piece.length;
    }
    await target.write(encodeHeader({ ...header, bodyChecksum }), 0, HEADER_BYTES, 0);
  }
  const { mode, uid, gid } = await stat(path);
  await chown(temporary, uid, gid);
  await chmod(temporary, mode & 0o7777);
  await syncPath(temporary);
  await rename(temporary, path);
  return true;
}

async function headerOf(file: FileHandle): Promise<IndexHeader> {
  const { size } = await file.stat();
  const bytes = Buffer.alloc(Math.min(HEADER_BYTES, size));
  await file.read(bytes, 0, bytes.length, 0);
  return decodeHeader(bytes, size);
}

/** Everything after the header, in pieces that are valid until the next one is requested. */
async function* bodyOf(file: FileHandle, pacer: Pacer): AsyncGenerator<Buffer> {
  const buffer = Buffer.allocUnsafeSlow(PIECE_BYTES);
  for (let position = HEADER_BYTES; ; ) {
    const { bytesRead } = await file.read(buffer, 0, PIECE_BYTES, position);
    if (bytesRead === 0) return;
    position += bytesRead;
    yield buffer.subarray(0, bytesRead);
    if (pacer.shouldYield()) await pacer.yield();
  }
}
