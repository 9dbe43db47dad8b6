import { basename, dirname } from "node:path";
import { ApiError } from "../domain/errors.ts";
import type { Capability } from "../system/confine.ts";
import type { CommandError } from "../system/exec.ts";
import { LAYOUT_TAG } from "./layout.ts";
import { runTool, type ToolBounds } from "./tool.ts";
import { commonFailure, reasonOf } from "./tool-failure.ts";

export interface UnpackOptions extends ToolBounds {
  /** OCI layout */
  readonly layout: string;
  /** default is LAYOUT_TAG */
  readonly tag?: string;
  /** directory to be made, which becomes the root file system; its parent exists and is private */
  readonly into: string;
}

const CAPABILITIES: readonly Capability[] = ["chown", "dac_override", "fowner", "fsetid", "mknod", "setfcap"];

/** What umoci may do that other tools may not: give files whatever owners, modes, devices and attributes an image has. */
export const UNPACK_RIGHTS = {
  capabilities: CAPABILITIES,
  // Without it, an image with an attribute such as security.ima could not be unpacked.
  attributes: true,
} as const;

/**
 * Applies an image's layers in order: owners, modes, devices, hard links and extended attributes as they are in it.
 * What is there after a failure is the caller's to remove.
 * @throws ApiError `validation_error` when the image is malformed, `insufficient_storage`, `payload_too_large`,
 * `unavailable` on time-out
 */
export async function unpack(options: UnpackOptions): Promise<void> {
  try {
    const command = {
      argv: unpackArgv(options),
      // A layout's name is relative to it: in an absolute one a colon would begin the tag.
      cwd: dirname(options.layout),
      confinement: {
        readable: [options.layout],
        writable: [dirname(options.into)],
        network: null,
        ...UNPACK_RIGHTS,
      },
    };
    await runTool(command, options);
  } catch (error) {
    const common = commonFailure(error, options.timeoutMs);
    if (common !== null) throw common;
    const words = errorLine((error as CommandError).stderrTail);
    // Where on this machine the image was being unpacked is nobody's business.
    const reason = reasonOf(words.replaceAll(options.into, "").replaceAll(dirname(options.into), ""));
    throw new ApiError("validation_error", `the image cannot be unpacked: ${reason}`, {}, { cause: error });
  }
}

export function unpackArgv({
  layout,
  tag = LAYOUT_TAG,
  into,
}: Pick<UnpackOptions, "layout" | "tag" | "into">): string[] {
  return ["umoci", "raw", "unpack", "--image", `${basename(layout)}:${tag}`, into];
}

/** umoci marks errors with a cross and progress with a dot. */
function errorLine(stderr: string): string {
  const lines = stderr.split("\n");
  const marked = lines.findLast((line) => line.includes("⨯"));
  return (marked ?? lines.at(-1) ?? "").replace("⨯", "");
}
