import { mkdir } from "node:fs/promises";
import { join, relative } from "node:path";
import { parseRegistryReference } from "../domain/registry-reference.ts";
import type { CommandError } from "../system/exec.ts";
import { scratchDirectory } from "../system/scratch.ts";
import { type ImageLayout, LAYOUT_TAG, requireSameImage } from "./layout.ts";
import { DOCUMENT_BYTES_MAX, unusable } from "./manifest.ts";
import { commonArgv } from "./skopeo.ts";
import { prepareSkopeoHome } from "./skopeo-home.ts";
import { runTool, type ToolBounds } from "./tool.ts";
import { commonFailure, reasonOf } from "./tool-failure.ts";

/** The configuration needs a registry's name, even though none is contacted. */
const PLACEHOLDER_REFERENCE = parseRegistryReference("archive.invalid/image:latest");

/** Directories and limits of an offline run of skopeo. */
export interface OfflineAccess extends ToolBounds {
  /** directories that it may read */
  readonly readable: readonly string[];
  /** private working directory, where it may write; its own files are removed before the call returns */
  readonly directory: string;
}

/**
 * Runs skopeo on files, in an empty network.
 * @param argv command and its arguments
 * @returns its output, or the error with which it refused
 * @throws ApiError for failures that any tool can have
 */
export async function runOffline(
  argv: readonly string[],
  { readable, directory, ...bounds }: OfflineAccess,
  {
    variant = "",
  }: { /** variant that an entry of an index must have; empty for none */ readonly variant?: string } = {},
): Promise<Uint8Array | CommandError> {
  await using own = await scratchDirectory(directory, "skopeo-");
  const home = await prepareSkopeoHome(own.path, PLACEHOLDER_REFERENCE, { credentials: null, settings: {} });
  try {
    const command = {
      argv: [...commonArgv(home), ...(variant === "" ? [] : ["--override-variant", variant]), ...argv],
      env: home.environment,
      // Names of layouts must be relative: in an absolute path, a colon would start the tag.
      cwd: directory,
      stdoutBytesMax: DOCUMENT_BYTES_MAX,
      confinement: { readable, writable: [directory], network: null },
    };
    return await runTool(command, bounds);
  } catch (error) {
    const common = commonFailure(error, bounds.timeoutMs);
    if (common !== null) throw common;
    return error as CommandError;
  }
}

/**
 * Returns the layout itself if umoci can read it, otherwise a new one of the same image with recompressed layers. umoci
 * verifies the unpacked layers by the config, which stays the same.
 * @param options.directory created if needed
 * @returns directory of the layout
 * @throws ApiError `validation_error`, and for failures that any tool can have
 */
export async function readableLayout(layout: ImageLayout, options: Omit<OfflineAccess, "readable">): Promise<string> {
  if (layout.isReadable) return layout.directory;
  const { directory } = options;
  await mkdir(directory, { mode: 0o700 });
  const source = `oci:${relative(directory, layout.directory)}:${LAYOUT_TAG}`;
  const argv = ["copy", "--quiet", "--dest-compress-format", "gzip", source, `oci:packed:${LAYOUT_TAG}`];
  const outcome = await runOffline(argv, { ...options, readable: [layout.directory] });
  if (!(outcome instanceof Uint8Array)) throw unusable(refusal(outcome, [directory, layout.directory]));
  const packed = join(directory, "packed");
  await requireSameImage(packed, layout);
  return packed;
}

/** skopeo's message without the paths of this machine. */
export function refusal({ stderrTail }: CommandError, paths: readonly string[]): string {
  const message = paths.reduce(
    (text, path) => text.replaceAll(path, ""),
    stderrTail.replace(/^.*level=fatal msg=/s, ""),
  );
  return reasonOf(message.replace(/\/skopeo-[^/]+\/tmp\/oci\d+/g, ""));
}
