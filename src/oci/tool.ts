import type { Confinement } from "../system/confine.ts";
import { run } from "../system/exec.ts";

/** Limits of every step of an import. */
export interface ToolBounds {
  /** host path of the launcher, which confines every tool */
  readonly launcher: string;
  readonly timeoutMs: number;
  /** ends the call with the signal's reason */
  readonly signal: AbortSignal;
  /** largest file that a tool may write, in `bytes`; default: 64 GiB */
  readonly fileBytesMax?: number;
  /** cgroup directories that tools join, which limit memory and processes */
  readonly controlGroups?: readonly string[];
}

export interface ToolCommand {
  /** program and arguments; must not contain a secret */
  readonly argv: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly stdoutBytesMax?: number;
  readonly confinement: Pick<Confinement, "writable" | "readable" | "network" | "capabilities" | "attributes">;
}

/** Default limit of one file. `watchTree` limits all files together. */
const FILE_BYTES_DEFAULT = 68_719_476_736;
/** Limit of memory on hosts without cgroups. Programs in Go reserve far more addresses than they use. */
const ADDRESS_BYTES_MAX = 17_179_869_184;
const OPEN_FILES_MAX = 4096;

/**
 * Runs a program that reads untrusted files, confined and within the limits of its import. Returns its output.
 * @throws CommandError, or the signal's reason, like `run`
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
