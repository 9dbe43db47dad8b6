import type { Capability } from "../system/confine.ts";
import { runTool, type ToolBounds } from "./tool.ts";

/** Directories may belong to other users, and be closed to all others. */
const CAPABILITIES: readonly Capability[] = ["dac_override"];

/** What is in a tree that changes may vanish, which du takes for a failure, but tells the sum all the same. */
const CHANGING = ["sh", "-c", 'du "$@" || :', "sh"] as const;

export interface DiskUsageOptions extends ToolBounds {
  readonly directory: string;
  /** whether something changes the directory meanwhile; default false */
  readonly changing?: boolean;
  /** more output than this many `bytes` is an error; default 1 MiB */
  readonly stdoutBytesMax?: number;
}

/**
 * What du prints of a directory. Neither a link is followed nor a file opened.
 * @throws CommandError as `run` does, Error when there is no such directory
 */
export async function diskUsage(flags: readonly string[], options: DiskUsageOptions): Promise<string> {
  const { directory, changing = false, stdoutBytesMax, ...bounds } = options;
  const argv = [...(changing ? CHANGING : ["du"]), ...flags, "--", directory];
  const confinement = { readable: [directory], writable: [], network: null, capabilities: CAPABILITIES };
  const command = { argv, confinement, ...(stdoutBytesMax === undefined ? {} : { stdoutBytesMax }) };
  return Buffer.from(await runTool(command, bounds)).toString("latin1");
}

/**
 * The sum that du prints of a directory.
 * @throws as `diskUsage` does, and Error when there is no number: nothing may pass for empty
 */
export async function diskUsageSum(flags: readonly string[], options: DiskUsageOptions): Promise<number> {
  const count = Number.parseInt(await diskUsage(["-s", ...flags], options), 10);
  if (!Number.isSafeInteger(count)) throw new Error(`du could not count ${options.directory}`);
  return count;
}
