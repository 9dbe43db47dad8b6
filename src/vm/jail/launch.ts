import { type ChildProcess, start } from "../../system/exec.ts";

/** First descriptor of a child that is not a standard one. */
const FIRST_EXTRA_FD = 3;

export interface JailOptions {
  /** host path of the launcher */
  readonly launcher: string;
  /** host path of the prepared root, see `prepareVmmRoot` */
  readonly root: string;
  /** host path of the machine's directory, seen as /vm */
  readonly directory: string;
  /** user and group of the program */
  readonly uid: number;
  readonly cgroups: readonly string[];
  /** host device nodes that the program gets, `/dev/kvm` for one */
  readonly devices: readonly string[];
  /** largest file that it may write, in `bytes` */
  readonly fileBytesMax: number;
  /** default: `JAIL_LIMITS` */
  readonly limits?: JailLimits;
  /** the kernel's calls that it gets beyond those of every VMM; default none */
  readonly calls?: readonly ("io-uring" | "userfaultfd")[];
  /** the whole environment of the program; default: none */
  readonly environment?: Readonly<Record<string, string>>;
  /** the program's descriptors from 3 on; "socket" is one end of a socket pair */
  readonly extraFds: readonly (number | "socket")[];
  /** program and arguments, as paths inside the jail */
  readonly program: readonly string[];
}

export interface JailLimits {
  /** descriptors of a VMM: disks, sockets, event descriptors of its devices */
  readonly openFilesMax: number;
  /** threads of the user */
  readonly threadsMax: number;
  readonly lockedMemoryBytesMax: number;
}

/** For a VMM with few threads: its processors, and up to 64 that wait for disks. */
export const JAIL_LIMITS: JailLimits = { openFilesMax: 512, threadsMax: 192, lockedMemoryBytesMax: 65_536 };

/** The kernel's first choice when the host's memory ends: a VM, not the daemon. */
const OOM_SCORE_ADJUSTMENT = 500;

/** Arguments of the launcher, which explains them. `parent` is the process that the jail dies with. */
export function buildLaunchArgs(options: JailOptions, parent: number): string[] {
  const { uid } = options;
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
    ...Object.entries(options.environment ?? {}).flatMap(([name, value]) => ["--variable", `${name}=${value}`]),
    "--",
    ...options.program,
  ];
}

/** Starts a program in its jail. The result's pid is the launcher's, which ends with the program's exit status. */
export function launch(options: JailOptions): ChildProcess {
  const child = start({ argv: buildLaunchArgs(options, process.pid), extraFds: options.extraFds, stderr: "tail" });
  let running = true;
  void child.exited.then(() => {
    running = false;
  });
  // A machine is killed again by its disposal, when its pid may be somebody else's.
  return { ...child, kill: (signal) => (running ? child.kill(signal) : undefined) };
}
