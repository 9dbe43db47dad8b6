import { type StatsFs, statfsSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { ApiError } from "../domain/errors.ts";
import { SPACE_CHECK_BYTES } from "./limits.ts";

/** Number of files that must remain possible: this many, or a twentieth of a small file system's inodes. */
const RESERVE_FILES_COUNT = 20_000;
const RESERVE_FILES_RATIO = 0.05;

/** Inodes of a file system: all, free and to be left; null when their number has no limit. */
export function inodeRoom({ files, ffree }: Pick<StatsFs, "files" | "ffree">): {
  readonly total: number;
  readonly free: number;
  readonly reserve: number;
} | null {
  if (files === 0) return null;
  return { total: files, free: ffree, reserve: Math.floor(Math.min(RESERVE_FILES_COUNT, files * RESERVE_FILES_RATIO)) };
}

/** Free space on the file system of `directory`, in `bytes`. */
export function freeSpace(directory: string): number {
  const { bavail, bsize } = statfsSync(directory);
  return bavail * bsize;
}

/** The error for a file system that is nearly out of inodes; null for any other. */
export function inodeShortage(directory: string): ApiError | null {
  const files = inodeRoom(statfsSync(directory));
  if (files === null || files.free >= files.reserve) return null;
  const details = { reserve_files: files.reserve };
  return new ApiError("insufficient_storage", "the disk of the service has almost no room for more files", details);
}

/**
 * Refuses work while the file system of `directory` has less than `reserveBytes` free, or is nearly out of inodes: running
 * operations must be able to end, and the database to record that.
 * @throws ApiError `insufficient_storage`
 */
export function requireSpace(directory: string, reserveBytes: number): void {
  if (freeSpace(directory) < reserveBytes) {
    const details = { reserve_bytes: reserveBytes };
    throw new ApiError("insufficient_storage", "the disk of the service is nearly full", details);
  }
  const shortage = inodeShortage(directory);
  if (shortage !== null) throw shortage;
}

/** Time for which a stream that is being stored waits for free space. */
const WAIT_MS_MAX = 3000;
const WAIT_POLL_MS = 50;

/** @throws as `requireSpace` does when there is no space within a few seconds */
async function awaitSpace(directory: string, reserveBytes: number): Promise<void> {
  const deadlineMs = performance.now() + WAIT_MS_MAX;
  while (performance.now() < deadlineMs && freeSpace(directory) < reserveBytes) await setTimeout(WAIT_POLL_MS);
  requireSpace(directory, reserveBytes);
}

/**
 * Passes a stream on while it is stored. Throws like `requireSpace` when space is short at the beginning, or becomes short
 * and stays so for some seconds.
 */
export async function* withSpaceChecks(
  stream: AsyncIterable<Uint8Array>,
  directory: string,
  reserveBytes: number,
): AsyncGenerator<Uint8Array, void, undefined> {
  requireSpace(directory, reserveBytes);
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.byteLength;
    if (bytes >= SPACE_CHECK_BYTES) {
      await awaitSpace(directory, reserveBytes);
      bytes = 0;
    }
    yield chunk;
  }
}
