import { type StatsFs, statfsSync } from "node:fs";
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

/**
 * Refuses work while the file system of `directory` has less room than `reserveBytes`, or can hardly have more files:
 * what runs already must be able to end, and the database to say so.
 * @throws ApiError `insufficient_storage`
 */
export function requireSpace(directory: string, reserveBytes: number): void {
  const found = statfsSync(directory);
  const { bavail, bsize } = found;
  if (bavail * bsize < reserveBytes) {
    const details = { reserve_bytes: reserveBytes };
    throw new ApiError("insufficient_storage", "the disk of the service is nearly full", details);
  }
  const files = fileRoom(found);
  if (files !== null && files.free < files.reserve) {
    const details = { reserve_files: files.reserve };
    throw new ApiError("insufficient_storage", "the disk of the service can hardly have more files", details);
  }
}

/** How often a watch looks: a fast disk takes some 100 MiB in between. */
const WATCH_INTERVAL_MS = 50;

/**
 * Watches the file system of `directory` while programs write to it that know no such limit. `full` fires, with the
 * reason that `requireSpace` gives, as soon as the room has become small.
 */
export function watchSpace(directory: string, reserveBytes: number): Disposable & { readonly full: AbortSignal } {
  const controller = new AbortController();
  const timer = setInterval(() => {
    try {
      requireSpace(directory, reserveBytes);
    } catch (error) {
      clearInterval(timer);
      controller.abort(error);
    }
  }, WATCH_INTERVAL_MS);
  return { full: controller.signal, [Symbol.dispose]: () => clearInterval(timer) };
}

/** Passes a stream that is being stored on, and fails as `requireSpace` does as soon as the room has become small. */
export async function* whileSpace(
  stream: AsyncIterable<Uint8Array>,
  directory: string,
  reserveBytes: number,
): AsyncGenerator<Uint8Array, void, undefined> {
  let bytes = SPACE_CHECK_BYTES;
  for await (const chunk of stream) {
    bytes += chunk.byteLength;
    if (bytes >= SPACE_CHECK_BYTES) {
      requireSpace(directory, reserveBytes);
      bytes = 0;
    }
    yield chunk;
  }
}
