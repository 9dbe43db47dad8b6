import { basename, dirname } from "node:path";
import { ApiError } from "../domain/errors.ts";
import type { Capability } from "../system/confine.ts";
import type { CommandError } from "../system/exec.ts";
import { refuseMisreadNames } from "./layer-names.ts";
import { LAYOUT_TAG } from "./layout.ts";
import { runTool, type ToolBounds } from "./tool.ts";
import { commonFailure, reasonOf } from "./tool-failure.ts";

export interface UnpackOptions extends ToolBounds {
  /** directory of the OCI layout */
  readonly layout: string;
  /** default: LAYOUT_TAG */
  readonly tag?: string;
  /** directory to create for the root file system, in an existing private directory */
  readonly into: string;
}

const CAPABILITIES: readonly Capability[] = ["chown", "dac_override", "fowner", "fsetid", "mknod", "setfcap"];

/** Rights that only umoci gets: to set all owners, modes, devices and attributes that an image has. */
export const UNPACK_RIGHTS = {
  capabilities: CAPABILITIES,
  // Needed for attributes such as security.ima.
  attributes: true,
} as const;

/**
 * Unpacks an image's layers in order, with owners, modes, devices, hard links and extended attributes. After a failure, the
 * caller removes the incomplete tree.
 * @throws ApiError `validation_error` when the image is malformed, `insufficient_storage`, `payload_too_large`,
 *   `unavailable` at the time limit
 */
export async function unpack(options: UnpackOptions): Promise<void> {
  const failed = new AbortController();
  const bounds = { ...options, signal: AbortSignal.any([options.signal, failed.signal]) };
  const names = refuseMisreadNames(options.layout, bounds).catch((error: unknown) => {
    failed.abort(error);
    throw error;
  });
  const files = runUmoci(bounds).catch((error: unknown) => {
    // Such a name may be the cause of a refusal by umoci, and then is the better reason.
    if (!(error instanceof ApiError && error.code === "validation_error")) failed.abort(error);
    throw error;
  });
  // Together they take little longer than umoci alone, which reads the same layers. Its result is used when both succeed.
  const outcomes = await Promise.allSettled([names, files]);
  for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
}

async function runUmoci(options: UnpackOptions): Promise<void> {
  try {
    const command = {
      argv: unpackArgv(options),
      // Names of layouts must be relative: in an absolute path, a colon would start the tag.
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
    const line = errorLine((error as CommandError).stderrTail);
    // The error must not reveal paths of this machine.
    const reason = reasonOf(line.replaceAll(options.into, "").replaceAll(dirname(options.into), ""));
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

/** The line with umoci's error, which it marks with a cross. */
function errorLine(stderr: string): string {
  const lines = stderr.split("\n");
  const marked = lines.findLast((line) => line.includes("⨯"));
  return (marked ?? lines.at(-1) ?? "").replace("⨯", "");
}
