import type { Confinement } from "../system/confine.ts";
import { run } from "../system/exec.ts";

/** What every step of an import is bound by. */
export interface ToolBounds {
  /** host path of the launcher, which jails every tool */
  readonly launcher: string;
  readonly timeoutMs: number;
  /** ends the call with the signal's reason */
  readonly signal: AbortSignal;
  /** largest file that a tool may write, in `bytes`; default is 64 GiB */
  readonly fileBytesMax?: number;
  /** directories of control groups that tools join; they bound memory and processes */
  readonly controlGroups?: readonly string[];
}

export interface ToolCommand {
  /** program and arguments; must not hold a secret */
  readonly argv: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly stdoutBytesMax?: number;
  readonly confinement: Pick<Confinement, "writable" | "readable" | "network" | "capabilities" | "attributes">;
}

/** How much all files may take is watched from outside. */
const FILE_BYTES_DEFAULT = 68_719_476_736;
/** Where no control group can bound memory, this does; programs in Go reserve far more addresses than they use. */
const ADDRESS_BYTES_MAX = 17_179_869_184;
const OPEN_FILES_MAX = 4096;

/**
 * Runs a program that reads what strangers made: confined, and within the bounds of its import.
 * @throws CommandError, or the signal's reason, as `run` does
 */
export async function runTool(
  command: ToolCommand,
  { launcher, timeoutMs, signal, fileBytesMax = FILE_BYTES_DEFAULT, controlGroups = [] }: ToolBounds,
): Promise<Uint8Array> {
  const limits = { fileBytesMax, addressBytesMax: ADDRESS_BYTES_MAX, openFilesMax: OPEN_FILES_MAX };
  const confinement = { ...command.confinement, launcher, limits, controlGroups };
  const { stdout } = await run({ ...command, confinement, timeoutMs, signal });
  return stdout;
}
