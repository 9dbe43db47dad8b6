import { createHash } from "node:crypto";
import { basename, dirname } from "node:path";
import { ApiError } from "../domain/errors.ts";
import { parseRegistryReference } from "../domain/registry-reference.ts";
import type { CommandError } from "../system/exec.ts";
import { scratchDirectory } from "../system/scratch.ts";
import { checkLayoutPlatform, selectManifest } from "./manifest.ts";
import { commonArgv, LAYOUT_TAG, MANIFEST_BYTES_MAX } from "./skopeo.ts";
import { prepareSkopeoHome, type SkopeoHome } from "./skopeo-home.ts";
import { runTool, type ToolBounds } from "./tool.ts";
import { commonFailure, reasonOf } from "./tool-failure.ts";

export interface ArchiveOptions extends ToolBounds {
  /** the archive, in a directory of its own; it is only read */
  readonly path: string;
  /** private directory; what is put there is gone when the call returns */
  readonly scratch: string;
}

/** skopeo's names of what a file may be, the one that says more first: newer docker-archives hold a layout, too. */
const TRANSPORTS = ["oci-archive", "docker-archive"] as const;
export type ArchiveTransport = (typeof TRANSPORTS)[number];

/** Nobody is asked, so nobody has to be named; the form wants a name. */
const NOBODY = parseRegistryReference("archive.invalid/image:latest");

/**
 * Finds out what kind of archive a file is, and the digest of the manifest that this platform gets of it.
 * @throws ApiError `validation_error` when it holds no image, or more than one
 */
export async function inspectArchive(
  options: ArchiveOptions,
): Promise<{ transport: ArchiveTransport; digest: string }> {
  const refusals: string[] = [];
  for (const transport of TRANSPORTS) {
    const outcome = await skopeo(["inspect", "--raw", `${transport}:${options.path}`], dirname(options.path), options);
    if (outcome instanceof Uint8Array) {
      const digest = `sha256:${createHash("sha256").update(outcome).digest("hex")}`;
      return { transport, digest: selectManifest(outcome, digest) };
    }
    refusals.push(`${transport}: ${refusal(outcome, options)}`);
  }
  throw new ApiError("validation_error", "the file is no archive of one image", { reasons: refusals });
}

/**
 * Copies the image of an archive into an OCI layout, as `copyToLayout` does.
 * @throws ApiError `validation_error`, `insufficient_storage`, `payload_too_large`
 */
export async function copyArchive(
  transport: ArchiveTransport,
  options: ArchiveOptions & { /** layout to be made; its parent exists, it does not */ readonly directory: string },
): Promise<void> {
  const target = `oci:${basename(options.directory)}:${LAYOUT_TAG}`;
  const form = ["--quiet", "--remove-signatures", "--dest-compress-format", "gzip"];
  const argv = ["copy", ...form, `${transport}:${options.path}`, target];
  const outcome = await skopeo(argv, dirname(options.directory), options);
  if (!(outcome instanceof Uint8Array)) {
    const message = `the archive cannot be read: ${refusal(outcome, options)}`;
    throw new ApiError("validation_error", message, {}, { cause: outcome });
  }
  await checkLayoutPlatform(options.directory);
}

/** skopeo's words, without where on this machine it was reading. */
function refusal({ stderrTail }: CommandError, { scratch }: ArchiveOptions): string {
  const words = stderrTail.replace(/^.*level=fatal msg=/s, "").replaceAll(scratch, "");
  return reasonOf(words.replace(/\/skopeo-[^/]+\/tmp\/oci\d+/g, ""));
}

/** What skopeo printed, or why it refused the archive. */
async function skopeo(
  argv: readonly string[],
  cwd: string,
  options: ArchiveOptions,
): Promise<Uint8Array | CommandError> {
  await using directory = await scratchDirectory(options.scratch, "skopeo-");
  const home: SkopeoHome = await prepareSkopeoHome(directory.path, NOBODY, { credentials: null, settings: {} });
  try {
    const command = {
      argv: [...commonArgv(home), ...argv],
      env: home.environment,
      // A layout's name is relative to it: in an absolute one a colon would begin the tag.
      cwd,
      stdoutBytesMax: MANIFEST_BYTES_MAX,
      // The archive is a file of the store, too, under another name.
      confinement: { readable: [dirname(options.path)], writable: [options.scratch], network: null },
    };
    return await runTool(command, options);
  } catch (error) {
    const common = commonFailure(error, options.timeoutMs);
    if (common !== null) throw common;
    return error as CommandError;
  }
}
