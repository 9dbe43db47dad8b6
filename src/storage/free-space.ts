import { type StatsFs, statfsSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { ApiError } from "../domain/errors.ts";
import { SPACE_CHECK_BYTES } from "./limits.ts";

/** Files that must be left to make, or a twentieth of all where a file system has few. */
const RESERVE_FILES_COUNT = 20_000;
const RESERVE_FILES_RATIO = 0.05;

/** How many more files a file system can have, and how many must be left; null where it has no such bound. */
export function fileRoom({ files, ffree }: Pick<StatsFs, "files" | "ffree">): {
  readonly total: number;
  readonly free: number;
  readonly reserve: number;
} | null {
  if (files === 0) return null;
  return { total: files, free: ffree, reserve: Math.floor(Math.min(RESERVE_FILES_COUNT, files * RESERVE_FILES_RATIO)) };
}

/** Room on the file system of `directory`, in `bytes`. */
export function freeSpace(directory: string): number {
  const { bavail, bsize } = statfsSync(directory);
  return bavail * bsize;
}

/** What to say of a file system that can hardly have more files; null for any other. */
export function fileShortage(directory: string): ApiError | null {
  const files = fileRoom(statfsSync(directory));
  if (files === null || files.free >= files.reserve) return null;
  const details = { reserve_files: files.reserve };
  return new ApiError("insufficient_storage", "the disk of the service can hardly have more files", details);
}

/**
 * Refuses work while the file system of `directory` has less room than `reserveBytes`, or can hardly have more files:
 * what runs already must be able to end, and the database to say so.
 * @throws ApiError `insufficient_storage`
 */
export function requireSpace(directory: string, reserveBytes: number): void {
  if (freeSpace(directory) < reserveBytes) {
    const details = { reserve_bytes: reserveBytes };
    throw new ApiError("insufficient_storage", "the disk of the service is nearly full", details);
  }
  const shortage = fileShortage(directory);
  if (shortage !== null) throw shortage;
}

/** What is being stored waits this long for room that somebody else has to give back. */
const WAIT_MS_MAX = 3000;
const WAIT_LOOK_MS = 50;

/** @throws as `requireSpace` does when there is no room within a few seconds */
async function awaitSpace(directory: string, reserveBytes: number): Promise<void> {
  const deadlineMs = performance.now() + WAIT_MS_MAX;
  while (performance.now() < deadlineMs && freeSpace(directory) < reserveBytes) await setTimeout(WAIT_LOOK_MS);
  requireSpace(directory, reserveBytes);
}

/**
 * Passes a stream that is being stored on, and fails as `requireSpace` does when the room is small at its beginning, or
 * has become small and stays so.
 */
export async function* whileSpace(
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
