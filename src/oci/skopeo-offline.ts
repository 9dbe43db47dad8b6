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

/** Nobody is asked, so nobody has to be named; the form wants a name. */
const NOBODY = parseRegistryReference("archive.invalid/image:latest");

/** What skopeo may touch when it asks nobody. */
export interface OfflineAccess extends ToolBounds {
  /** directories that it reads */
  readonly readable: readonly string[];
  /** private directory, where it starts and may write; what it needs for itself is gone when the call returns */
  readonly directory: string;
}

/**
 * Runs skopeo on files alone, in a network without anybody.
 * @param argv command and what comes after it
 * @returns what it printed, or why it refused
 * @throws ApiError for what any tool may run into
 */
export async function runOffline(
  argv: readonly string[],
  { readable, directory, ...bounds }: OfflineAccess,
  { variant = "" }: { /** that an index's entry must have; empty for none */ readonly variant?: string } = {},
): Promise<Uint8Array | CommandError> {
  await using own = await scratchDirectory(directory, "skopeo-");
  const home = await prepareSkopeoHome(own.path, NOBODY, { credentials: null, settings: {} });
  try {
    const command = {
      argv: [...commonArgv(home), ...(variant === "" ? [] : ["--override-variant", variant]), ...argv],
      env: home.environment,
      // A layout's name is relative to it: in an absolute one a colon would begin the tag.
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
 * The layout itself where umoci can read it, otherwise another one of the same image with its layers packed as umoci
 * wants them. Whoever unpacks that one checks what is in them against the config, which is the same.
 * @param options.directory is made where it is needed
 * @returns the layout's directory
 * @throws ApiError `validation_error`, and what any tool may run into
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

/** skopeo's words, without where on this machine it was reading. */
export function refusal({ stderrTail }: CommandError, paths: readonly string[]): string {
  const words = paths.reduce((text, path) => text.replaceAll(path, ""), stderrTail.replace(/^.*level=fatal msg=/s, ""));
  return reasonOf(words.replace(/\/skopeo-[^/]+\/tmp\/oci\d+/g, ""));
}
