import { closeSync, readFileSync } from "node:fs";
import { chmod, copyFile, mkdir, realpath, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { CgroupTree } from "../../cgroup/cgroup.ts";
import { type ChildProcess, type ExitStatus, start } from "../../system/exec.ts";
import { sharedObjects } from "../../system/shared-objects.ts";
import { listenUnix, openSocketDirectory } from "../../system/unix-sockets.ts";

/** Resources with which the process starts. */
export interface GateHost {
  /** host path of the launcher, which builds the jail */
  readonly launcher: string;
  readonly cgroups: CgroupTree;
  /** user and group of this process alone */
  readonly uid: number;
  /** directory of its own, which only the daemon enters */
  readonly directory: string;
}

/** The process in its jail. Disposal kills it and removes everything that it had. */
export interface GateProcess extends AsyncDisposable {
  /** of the launcher, whose only child the process is */
  readonly pid: number;
  /** resident memory of both, in `bytes` */
  residentBytes(): number;
  /** socket on which it accepts connections of the daemon; a path in this process, until disposal */
  readonly path: string;
  readonly exited: Promise<ExitStatus>;
  stderrTail(): string;
}

/**
 * Limits of the process: two windows of data and two sockets for each connection, and the threads of its runtime. With 1000
 * connections that are full in both directions it has 530 MiB. The kernel buffers more bytes for a server that reads none; where
 * the cgroup counts those, too, the kernel buffers fewer.
 */
const MEMORY_BYTES = 768 * 1024 ** 2;
/** The size of the machine as the runtime sees it: near this size, it collects garbage often. */
const HEAP_BYTES = 256 * 1024 ** 2;
const PIDS_MAX = 64;
const OPEN_FILES_MAX = 8192;
/** Threads of all processes of the user, of which there is one for each daemon on the host. */
const THREADS_MAX = 1024;
const LOCKED_BYTES_MAX = 65_536;
/** When the host runs out of memory, the kernel should kill this before the daemon. */
const OOM_SCORE_ADJUSTMENT = 500;
const FIRST_EXTRA_FD = 3;
const BACKLOG_COUNT = 1024;
/** Path of the executable in the jail. */
const PROGRAM = "/program";

/** The bundled main.ts, which the build puts into the executable. Without the build it runs from source. */
declare const BUILD_GATE: string | undefined;

/** A heap that fits the cgroup. There is no compiler at run time: the process only passes bytes on. */
const ENVIRONMENT = {
  // The executable then is a runtime for a program of its own, a fifth of the size.
  BUN_BE_BUN: "1",
  BUN_JSC_forceRAMSize: `${HEAP_BYTES}`,
  BUN_JSC_useJIT: "0",
  NODE_ENV: "production",
  LANG: "C",
} as const;

/** @throws Error when its directory, control group or socket cannot be created. A jail that fails ends the process. */
export async function startGateProcess(host: GateHost): Promise<GateProcess> {
  await using stack = new AsyncDisposableStack();
  // A daemon that was killed leaves its directory behind.
  await rm(host.directory, { recursive: true, force: true });
  const directory = join(host.directory, Bun.randomUUIDv7());
  const root = join(directory, "root");
  await mkdir(root, { recursive: true, mode: 0o700 });
  stack.defer(() => rm(directory, { recursive: true, force: true }));
  const limits = { memoryBytes: MEMORY_BYTES, pids: PIDS_MAX };
  const cgroup = stack.use(await host.cgroups.create(`gate-${Bun.randomUUIDv7()}`, limits));
  const path = `${openSocketDirectory(stack, directory)}/gate`;
  const executable = await ownExecutable(directory);
  const { readable, program } = await programFiles(directory, executable);
  const listener = listenUnix(path, BACKLOG_COUNT);
  // After this function only the process has the socket, so connections end with it.
  using _listener = { [Symbol.dispose]: () => closeSync(listener) };
  const argv = gateArgs({
    launcher: host.launcher,
    uid: host.uid,
    root,
    readable,
    program,
    cgroups: cgroup.directories,
    executable,
  });
  const child = start({ argv, extraFds: [listener], stderr: "tail" });
  stack.defer(() => end(child));
  const owned = stack.move();
  return {
    residentBytes: () => residentBytes(child.pid),
    pid: child.pid,
    path,
    exited: child.exited,
    stderrTail: child.stderrTail,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** The contents of the jail. All paths are the host's, except those in `program`. */
export interface GateJail {
  readonly launcher: string;
  readonly cgroups: readonly string[];
  readonly uid: number;
  /** an empty directory, on which the root is mounted */
  readonly root: string;
  /** the program sees it as /program */
  readonly executable: string;
  /** files and directories that the program sees at the same paths */
  readonly readable: readonly string[];
  readonly program: readonly string[];
}

/** Arguments of the launcher, which explains them. The program gets the descriptor 3. */
export function gateArgs({ launcher, cgroups, uid, root, executable, readable, program }: GateJail): string[] {
  return [
    ...[launcher, "gate", ...cgroups.flatMap((group) => ["--cgroup", group])],
    ...["--root", root, "--executable", executable],
    ...readable.flatMap((file) => ["--readable", file]),
    ...["--uid", `${uid}`, "--gid", `${uid}`, "--parent", `${process.pid}`],
    ...["--nofile", `${OPEN_FILES_MAX}`, "--fsize", "0", "--nproc", `${THREADS_MAX}`],
    ...["--memlock", `${LOCKED_BYTES_MAX}`, "--oom-score-adj", `${OOM_SCORE_ADJUSTMENT}`],
    ...["--keep-fd", `${FIRST_EXTRA_FD}`],
    ...Object.entries(ENVIRONMENT).flatMap(([name, value]) => ["--variable", `${name}=${value}`]),
    ...["--", ...program],
  ];
}

/** Resident memory of a process and its children, in `bytes`; 0 when it has ended. */
function residentBytes(pid: number): number {
  try {
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim();
    const pids = [`${pid}`, ...(children === "" ? [] : children.split(" "))];
    const kib = pids.map((each) => /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${each}/status`, "utf8"))?.[1]);
    return 1024 * kib.reduce((sum, each) => sum + Number(each ?? 0), 0);
  } catch (error) {
    // It has ended meanwhile.
    if (["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) return 0;
    throw error;
  }
}

async function end(child: ChildProcess): Promise<void> {
  child.kill("SIGKILL");
  await child.exited;
}

/**
 * Path of the executable that this process runs. An upgrade may have put another one in its place, with another
 * protocol; then a copy is made in `directory`.
 */
async function ownExecutable(directory: string): Promise<string> {
  const own = "/proc/self/exe";
  const [present, running] = await Promise.all([stat(process.execPath).catch(() => null), stat(own)]);
  if (present?.dev === running.dev && present.ino === running.ino) return await realpath(process.execPath);
  const copy = join(directory, "program");
  await copyFile(own, copy);
  await chmod(copy, 0o555);
  return copy;
}

/** The command line in the jail, and the files that it needs there in addition to the executable. */
async function programFiles(directory: string, executable: string): Promise<{ readable: string[]; program: string[] }> {
  const libraries = await sharedObjects(executable);
  if (typeof BUILD_GATE === "undefined") {
    const sources = join(import.meta.dir, "../..");
    const packages = join(sources, "../node_modules");
    return { readable: [...libraries, sources, packages], program: [PROGRAM, join(sources, "network/gate/main.ts")] };
  }
  const program = join(directory, "program.js");
  await writeFile(program, BUILD_GATE);
  await chmod(program, 0o444);
  return { readable: [...libraries, program], program: [PROGRAM, program] };
}
