import { type FileHandle, open } from "node:fs/promises";
import { type Cancellation, Pacer } from "../pacer.ts";
import { decodeHeader, HEADER_BYTES, type IndexHeader } from "./layer-index-format.ts";

const PIECE_BYTES = 262_144;

/**
 * Checks the checksum of a stored index, because readers notice damage only in the parts that they read.
 * @throws LayerIndexError when the file is not a complete index; the error of `cancellation`
 */
export async function isIndexIntact(path: string, cancellation: Cancellation | null = null): Promise<boolean> {
  await using file = await open(path, "r");
  const { bodyChecksum } = await headerOf(file);
  const pacer = new Pacer(cancellation);
  let checksum = 0;
  for await (const piece of bodyOf(file, pacer)) checksum = Bun.hash.crc32(piece, checksum);
  return checksum === bodyChecksum;
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
