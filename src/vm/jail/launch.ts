import { type ChildProcess, start } from "../../system/exec.ts";

/** First descriptor of a child after the standard streams. */
const FIRST_EXTRA_FD = 3;

export interface JailOptions {
  /** host path of the launcher */
  readonly launcher: string;
  /** host path of the prepared root; see `prepareVmmRoot` */
  readonly root: string;
  /** host path of the machine's directory, which the program sees as /vm */
  readonly directory: string;
  /** user and group of the program */
  readonly uid: number;
  readonly cgroups: readonly string[];
  /** host device nodes that the program gets, for example `/dev/kvm` */
  readonly devices: readonly string[];
  /** largest file that the program may write, in `bytes` */
  readonly fileBytesMax: number;
  /** default: `JAIL_LIMITS` */
  readonly limits?: JailLimits;
  /** system calls that the program may use beyond those of every VMM; default: none */
  readonly calls?: readonly "io-uring"[];
  /** the whole environment of the program; default: empty */
  readonly environment?: Readonly<Record<string, string>>;
  /**
   * Descriptor of the file for the launcher's report of the program's end, which the program does not get. `fds` of the
   * result then ends with the socket of the lease. Default: no report, and the launcher dies with this process.
   */
  readonly report?: number;
  /** the program's descriptors from 3 on; "socket" stands for one end of a new socket pair */
  readonly extraFds: readonly (number | "socket")[];
  /** program and arguments, as paths inside the jail */
  readonly program: readonly string[];
}

export interface JailLimits {
  /** descriptors of a VMM: disks, sockets, event descriptors of its devices */
  readonly openFilesMax: number;
  /** threads of the VMM's user */
  readonly threadsMax: number;
  readonly lockedMemoryBytesMax: number;
}

/** For a VMM with few threads: one for each processor, and up to 64 that wait for disks. */
export const JAIL_LIMITS: JailLimits = { openFilesMax: 512, threadsMax: 192, lockedMemoryBytesMax: 65_536 };

/** When the host runs out of memory, the kernel should kill a VM before the daemon. */
const OOM_SCORE_ADJUSTMENT = 500;

/** Arguments of the launcher, whose usage text explains them. `parent` is the process whose death ends the jail. */
export function buildLaunchArgs(options: JailOptions, parent: number): string[] {
  const { uid } = options;
  // The descriptors of the launcher alone follow those of the program.
  const ownFd = FIRST_EXTRA_FD + options.extraFds.length;
  const { openFilesMax, threadsMax, lockedMemoryBytesMax } = options.limits ?? JAIL_LIMITS;
  return [
    options.launcher,
    "vm",
    ...options.cgroups.flatMap((directory) => ["--cgroup", directory]),
    ...["--root", options.root, "--vm", options.directory],
    ...["--uid", `${uid}`, "--gid", `${uid}`],
    ...options.devices.flatMap((device) => ["--device", device]),
    ...(options.calls ?? []).map((family) => `--${family}`),
    ...["--nofile", `${openFilesMax}`, "--fsize", `${options.fileBytesMax}`],
    ...["--nproc", `${threadsMax}`, "--memlock", `${lockedMemoryBytesMax}`],
    ...["--oom-score-adj", `${OOM_SCORE_ADJUSTMENT}`, "--parent", `${parent}`],
    ...options.extraFds.flatMap((_, index) => ["--keep-fd", `${FIRST_EXTRA_FD + index}`]),
    ...(options.report === undefined ? [] : ["--report", `${ownFd}`, "--lease", `${ownFd + 1}`]),
    ...Object.entries(options.environment ?? {}).flatMap(([name, value]) => ["--variable", `${name}=${value}`]),
    "--",
    ...options.program,
  ];
}

/** Starts a program in its jail. The pid is that of the launcher, which exits with the program's status. */
export function launch(options: JailOptions): ChildProcess {
  const own: (number | "socket")[] = options.report === undefined ? [] : [options.report, "socket"];
  const extraFds = [...options.extraFds, ...own];
  const child = start({ argv: buildLaunchArgs(options, process.pid), extraFds, stderr: "tail" });
  let running = true;
  void child.exited.then(() => {
    running = false;
  });
  // Disposal kills a machine again, when another process may already have its pid.
  return { ...child, kill: (signal) => (running ? child.kill(signal) : undefined) };
}
