import { ApiError } from "../domain/errors.ts";
import { CommandError } from "../system/exec.ts";

/** Length of a tool's message in an error, in characters. */
const REASON_MAX = 500;

/**
 * The error for a failure that any tool of an import can have; null for one that is specific to the tool.
 * @throws `error` itself when it is not a CommandError: an abort or a bug
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
  // mkfs reports an attribute that is larger than a block with the same message as a full disk.
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
    const message = `the image takes more memory than ${error.program} may use`;
    return new ApiError("payload_too_large", message, {}, { cause: error });
  }
  return null;
}

/** A tool's message as one short line, without query strings of URLs, which may contain signatures. */
export function reasonOf(text: string): string {
  const line = text
    .replace(/\?[^\s"']*/g, "?...")
    .replace(/\s+/g, " ")
    .trim();
  if (line.length <= REASON_MAX) return line;
  // Tools name the step at the beginning and the reason at the end; long names are in between.
  return `${line.slice(0, REASON_MAX / 2)} ... ${line.slice(-REASON_MAX / 2)}`;
}
