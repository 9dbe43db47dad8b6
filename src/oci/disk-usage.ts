import { given } from "../domain/given.ts";
import type { Capability } from "../system/confine.ts";
import { runTool, type ToolBounds } from "./tool.ts";

/** Needed for directories that belong to other users. */
const CAPABILITIES: readonly Capability[] = ["dac_override"];

/** In a changing tree, du fails for files that vanish, but still prints the sum. */
const TOLERANT_DU = ["sh", "-c", 'du "$@" || :', "sh"] as const;

export interface DiskUsageOptions extends ToolBounds {
  readonly directory: string;
  /** whether the directory may change during the call; default: false */
  readonly changing?: boolean;
  /** limit of the output, in `bytes`; more is an error; default 1 MiB */
  readonly stdoutBytesMax?: number;
}

/**
 * The output of du for a directory. du follows no links and opens no files.
 * @throws CommandError like `run`; Error when the directory does not exist
 */
export async function diskUsage(flags: readonly string[], options: DiskUsageOptions): Promise<string> {
  const { directory, changing = false, stdoutBytesMax, ...bounds } = options;
  const argv = [...(changing ? TOLERANT_DU : ["du"]), ...flags, "--", directory];
  const confinement = { readable: [directory], writable: [], network: null, capabilities: CAPABILITIES };
  const command = { argv, confinement, ...given({ stdoutBytesMax }) };
  return Buffer.from(await runTool(command, bounds)).toString("latin1");
}

/**
 * The sum that du prints for a directory.
 * @throws like `diskUsage`; Error when the output is not a number, so that a failure does not count as empty
 */
export async function diskUsageSum(flags: readonly string[], options: DiskUsageOptions): Promise<number> {
  const count = Number.parseInt(await diskUsage(["-s", ...flags], options), 10);
  if (!Number.isSafeInteger(count)) throw new Error(`du could not count ${options.directory}`);
  return count;
}
