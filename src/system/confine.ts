import { constants } from "node:os";

/** Exit code of the launcher when the program was not even started. */
export const CONFINEMENT_FAILED_EXIT = 125;
/** The launcher ends with this plus the number of the signal that ended the program, as shells do. */
const EXIT_SIGNAL_BASE = 128;

/** What a program can see and reach of the host beside its own files, and what it may take of it. */
export interface Confinement {
  /** host path of the launcher (vm-assets/launch), which makes the jail */
  readonly launcher: string;
  /** absolute paths of directories that it may change */
  readonly writable: readonly string[];
  /** absolute paths of directories that it may read */
  readonly readable: readonly string[];
  /** file of the network namespace that it runs in; null for one without any interface but a loopback that is down */
  readonly network: string | null;
  /** what it keeps of root's powers; default none */
  readonly capabilities?: readonly Capability[];
  /**
   * Whether it can set attributes in the name spaces `security` and `trusted`, which takes the power to mount: the
   * launcher then does so in its place; default false
   */
  readonly attributes?: boolean;
  readonly limits: ConfinementLimits;
  /** directories of control groups that it joins before it starts; default none */
  readonly controlGroups?: readonly string[];
}

/** Bounds that the kernel enforces on a program and its descendants. */
export interface ConfinementLimits {
  /** largest file it may write, in `bytes` (RLIMIT_FSIZE) */
  readonly fileBytesMax: number;
  /** address space, in `bytes` (RLIMIT_AS) */
  readonly addressBytesMax: number;
  readonly openFilesMax: number;
}

/** Numbers of root's powers, from linux/capability.h. */
const CAPABILITIES = {
  chown: 0,
  dac_override: 1,
  fowner: 3,
  fsetid: 4,
  mknod: 27,
  setfcap: 31,
} as const;

/** A power of root. */
export type Capability = keyof typeof CAPABILITIES;

/** When the host's memory ends, a program that can be run again goes before the daemon. */
const OOM_SCORE_ADJUSTMENT = 500;

/**
 * Arguments of the launcher, to be followed by the program's.
 * @param start absolute path of the directory that the program starts in, and the process that the jail dies with
 */
export function confinementWrapper(
  confinement: Confinement,
  start: { readonly cwd: string; readonly parent: number },
): string[] {
  const { launcher, writable, readable, network, limits, attributes = false, controlGroups = [] } = confinement;
  const capabilities = (confinement.capabilities ?? []).reduce(
    (mask, name) => mask | (1n << BigInt(CAPABILITIES[name])),
    0n,
  );
  return [
    ...[launcher, "tool", "--parent", `${start.parent}`, "--directory", start.cwd],
    ...controlGroups.flatMap((directory) => ["--cgroup", directory]),
    ...writable.flatMap((directory) => ["--writable", directory]),
    ...readable.flatMap((directory) => ["--readable", directory]),
    ...(network === null ? [] : ["--network", network]),
    ...(attributes ? ["--attributes"] : []),
    ...["--capabilities", `${capabilities}`, "--oom-score-adj", `${OOM_SCORE_ADJUSTMENT}`],
    ...["--fsize", `${limits.fileBytesMax}`, "--as", `${limits.addressBytesMax}`, "--nofile", `${limits.openFilesMax}`],
    "--",
  ];
}

/** The signal that ended a confined program, by the launcher's exit code; null for none. */
export function confinedSignal(exitCode: number | null): string | null {
  const number = (exitCode ?? 0) - EXIT_SIGNAL_BASE;
  return Object.entries(constants.signals).find(([, value]) => value === number)?.[0] ?? null;
}
