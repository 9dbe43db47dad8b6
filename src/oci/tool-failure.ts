import { ApiError } from "../domain/errors.ts";
import { CommandError } from "../system/exec.ts";

/** Longest text of a tool that an error repeats, in characters. */
const REASON_MAX = 500;

/**
 * What any tool of an import may run into, as an error for the caller of the interface; null when it is something that
 * only this tool can explain. Not a CommandError: thrown again, it is an abort or a bug.
 */
export function commonFailure(error: unknown, timeoutMs: number): ApiError | null {
  if (!(error instanceof CommandError)) throw error;
  if (error.timedOut) {
    return new ApiError(
      "unavailable",
      `import timed out after ${Math.round(timeoutMs / 1000)} s`,
      {},
      { cause: error },
    );
  }
  // A file system says the same of an attribute that is larger than its block as of a disk that is full.
  if (/xattr metadata: .*: no space left on device/i.test(error.stderrTail)) {
    const message = "the image has extended attributes that are too large, or the disk of this machine is full";
    return new ApiError("payload_too_large", message, {}, { cause: error });
  }
  if (/no space left on device|disk quota exceeded/i.test(error.stderrTail)) {
    return new ApiError("insufficient_storage", "the disk of this machine is full", {}, { cause: error });
  }
  if (error.signal === "SIGXFSZ" || /file too large/i.test(error.stderrTail)) {
    return new ApiError("payload_too_large", "the image unpacks to a file that is too large", {}, { cause: error });
  }
  if (error.signal === "SIGKILL" || /cannot allocate memory|out of memory/i.test(error.stderrTail)) {
    const message = `the image takes more memory than ${error.program} may have`;
    return new ApiError("payload_too_large", message, {}, { cause: error });
  }
  return null;
}

/** One line of a tool's own words, short and without the query strings of addresses, which may hold signatures. */
export function reasonOf(text: string): string {
  const line = text
    .replace(/\?[^\s"']*/g, "?...")
    .replace(/\s+/g, " ")
    .trim();
  if (line.length <= REASON_MAX) return line;
  // Tools say at the beginning what they were at, and at the end why it failed; long names are in between.
  return `${line.slice(0, REASON_MAX / 2)} ... ${line.slice(-REASON_MAX / 2)}`;
}
