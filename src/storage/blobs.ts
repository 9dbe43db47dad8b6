import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, open, readdir, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { ApiError, storageFull } from "../domain/errors.ts";
import { SHA256_PATTERN } from "../domain/file.ts";
import { syncPath } from "../system/scratch.ts";
import { allocatedBytes } from "../system/sparse.ts";
import type { DataLayout } from "./layout.ts";
import { READ_CHUNK_BYTES } from "./limits.ts";

const sha256Expression = new RegExp(SHA256_PATTERN);

export interface ReceivedBlob {
  readonly sha256: string;
  readonly sizeBytes: number;
}

/** Path of the content with this hash. @throws Error for a malformed hash */
export function blobPath(layout: DataLayout, sha256: string): string {
  if (!sha256Expression.test(sha256)) throw new Error("not a lower-case SHA-256");
  return join(layout.blobs, sha256.slice(0, 2), sha256);
}

/** The content in chunks; the file is closed when the reader stops early. */
export function blobStream(layout: DataLayout, sha256: string): AsyncIterable<Uint8Array> {
  return createReadStream(blobPath(layout, sha256), { highWaterMark: READ_CHUNK_BYTES });
}

/** Hashes of all stored contents. */
export async function listBlobs(layout: DataLayout): Promise<string[]> {
  const names = await readdir(layout.blobs, { recursive: true });
  return names.map((name) => basename(name)).filter((name) => sha256Expression.test(name));
}

/** End of the last turn for each content; these promises never reject. */
const turns = new Map<string, Promise<void>>();

/** Runs `work` on a content after all earlier work on it. */
async function inTurn<T>(sha256: string, work: () => Promise<T>): Promise<T> {
  const turn = (turns.get(sha256) ?? Promise.resolve()).then(work);
  const forget = () => {
    if (turns.get(sha256) === ended) turns.delete(sha256);
  };
  const ended: Promise<void> = turn.then(forget, forget);
  turns.set(sha256, ended);
  return await turn;
}

/**
 * Removes a content unless `isReferenced` returns true. No row can come to refer to it during the call.
 * @returns the disk space that it used, in `bytes`; 0 when it stays
 */
export async function removeBlob(layout: DataLayout, sha256: string, isReferenced: () => boolean): Promise<number> {
  return await inTurn(sha256, async () => {
    if (isReferenced()) return 0;
    const bytes = await blobBytes(layout, sha256);
    await rm(blobPath(layout, sha256), { force: true });
    return bytes;
  });
}

/** Disk space of a content, in `bytes`; 0 when it does not exist. */
export async function blobBytes(layout: DataLayout, sha256: string): Promise<number> {
  return (await allocatedBytes(blobPath(layout, sha256)).catch(ignoreMissing)) ?? 0;
}

/**
 * Stores a stream under the hash of its content, and syncs it to the disk. Equal contents are stored once. An error, also
 * one of `source`, leaves nothing behind. `record` inserts the row that refers to the content. It runs before another caller
 * can remove the content for lack of a row.
 * @throws ApiError `payload_too_large` above `limitBytes`, `insufficient_storage` when the disk is full
 */
export async function receiveBlob<T = ReceivedBlob>(
  layout: DataLayout,
  source: AsyncIterable<Uint8Array>,
  limitBytes: number,
  record: (blob: ReceivedBlob) => T = (blob) => blob as T,
): Promise<T> {
  const temporary = join(layout.tmp, `upload-${Bun.randomUUIDv7()}`);
  await using undo = new AsyncDisposableStack();
  undo.defer(() => rm(temporary, { force: true }));
  const blob = await writeHashed(temporary, source, limitBytes).catch((error: unknown): never => {
    throw storageFull(error) ?? error;
  });
  return await inTurn(blob.sha256, async () => {
    await publishBlob(temporary, blobPath(layout, blob.sha256), blob.sizeBytes);
    return record(blob);
  });
}

async function writeHashed(path: string, source: AsyncIterable<Uint8Array>, limitBytes: number): Promise<ReceivedBlob> {
  await using file = await open(path, "wx", 0o600);
  // node:crypto is a fifth faster here than Bun.CryptoHasher.
  const hash = createHash("sha256");
  let sizeBytes = 0;
  for await (const chunk of source) {
    sizeBytes += chunk.byteLength;
    if (sizeBytes > limitBytes) {
      throw new ApiError("payload_too_large", `content is larger than ${limitBytes} bytes`, {
        limit_bytes: limitBytes,
      });
    }
    // Written by another thread while this one computes the hash.
    const written = writeAll(file, chunk);
    hash.update(chunk);
    await written;
  }
  await file.sync();
  return { sha256: hash.digest("hex"), sizeBytes };
}

async function writeAll(file: Awaited<ReturnType<typeof open>>, chunk: Uint8Array): Promise<void> {
  let offset = 0;
  while (offset < chunk.byteLength) {
    const { bytesWritten } = await file.write(chunk, offset, chunk.byteLength - offset, null);
    offset += bytesWritten;
  }
}

async function publishBlob(temporary: string, final: string, sizeBytes: number): Promise<void> {
  const directory = dirname(final);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  // Replacing an equal file would be correct, but existing hard links would keep another inode.
  const existing = await stat(final).catch(ignoreMissing);
  if (existing?.size !== sizeBytes) await rename(temporary, final);
  await syncPath(directory);
  await syncPath(dirname(directory));
}

function ignoreMissing(error: NodeJS.ErrnoException): null {
  if (error.code === "ENOENT") return null;
  throw error;
}
