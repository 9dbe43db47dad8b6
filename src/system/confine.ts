import { constants } from "node:os";

/** Exit code of the launcher when it could not start the program. */
export const CONFINEMENT_FAILED_EXIT = 125;
/** Like a shell, the launcher reports a program that a signal ended with this plus the signal's number. */
const EXIT_SIGNAL_BASE = 128;

/** The parts of the host that a confined program may see, change and use. */
export interface Confinement {
  /** host path of the launcher (vm-assets/launch), which builds the jail */
  readonly launcher: string;
  /** absolute paths of directories that the program may change */
  readonly writable: readonly string[];
  /** absolute paths of directories that the program may read */
  readonly readable: readonly string[];
  /** file of the network namespace to run in; null for a new one, whose loopback interface is down */
  readonly network: string | null;
  /** capabilities that the program keeps; default: none */
  readonly capabilities?: readonly Capability[];
  /**
   * whether the program may set extended attributes in the name spaces `security` and `trusted`. That takes CAP_SYS_ADMIN,
   * so the launcher does it on the program's behalf; default: false
   */
  readonly attributes?: boolean;
  readonly limits: ConfinementLimits;
  /** cgroup directories that the program joins before it starts; default: none */
  readonly controlGroups?: readonly string[];
}

/** Limits that the kernel enforces on a program and its descendants. */
export interface ConfinementLimits {
  /** largest file that it may write, in `bytes` (RLIMIT_FSIZE) */
  readonly fileBytesMax: number;
  /** address space, in `bytes` (RLIMIT_AS) */
  readonly addressBytesMax: number;
  readonly openFilesMax: number;
}

/** Numbers of capabilities in linux/capability.h. */
const CAPABILITIES = {
  chown: 0,
  dac_override: 1,
  fowner: 3,
  fsetid: 4,
  mknod: 27,
  setfcap: 31,
} as const;

/** A capability that a program can keep. */
export type Capability = keyof typeof CAPABILITIES;

/** When the host runs out of memory, the kernel should kill a program that can be repeated before the daemon. */
const OOM_SCORE_ADJUSTMENT = 500;

/**
 * Arguments of the launcher; those of the program follow.
 * @param start `cwd`: absolute path of the program's working directory; `parent`: the process whose death ends the jail
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

/** The signal that ended a confined program, from the launcher's exit code; null when none did. */
export function confinedSignal(exitCode: number | null): string | null {
  const number = (exitCode ?? 0) - EXIT_SIGNAL_BASE;
  return Object.entries(constants.signals).find(([, value]) => value === number)?.[0] ?? null;
}
