import { closeSync, openSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Cgroup, CgroupTree } from "../../cgroup/cgroup.ts";
import type { Log } from "../../log.ts";
import type { ChildProcess } from "../../system/exec.ts";
import { withinTime } from "../../system/waiting.ts";
import type { VmAssets } from "../assets.ts";
import { throwStartFailure, throwVmmGone } from "../machine-end.ts";
import { machineMemoryBytes } from "../machine-memory.ts";
import type { MachineShape } from "../vmm.ts";
import { type ExitReport, readExitReport } from "./exit-report.ts";
import { type JailOptions, launch } from "./launch.ts";
import { Lease } from "./lease.ts";
import { makePrivateDirectory } from "./machine-files.ts";
import { isKernelThread } from "./processes.ts";
import type { UidPool } from "./uid-pool.ts";
import type { HeldRoots } from "./vmm-roots.ts";

/** The parts of the host that every VMM is opened with, whichever program it is. */
export interface VmmHost {
  readonly assets: VmAssets;
  /** parent of the machines' directories, on the file system of the layers */
  readonly vmsDirectory: string;
  /** directory for the roots of VMMs */
  readonly runtimeDirectory: string;
  readonly cgroups: CgroupTree;
  /** largest disk that a machine may write, in `bytes` */
  readonly diskBytesMax: number;
  /** shared by all VMMs of the daemon */
  readonly uids: UidPool;
  /** shared by all VMMs of the daemon, and by machines that an earlier daemon started; default: the VMM's own */
  readonly heldRoots?: HeldRoots;
  readonly log: Log;
}

/** The parts of the host that belong to one machine alone. */
export interface MachineHome {
  readonly id: string;
  readonly uid: number;
  /** The machine's directory on the host, which only root may enter; the VMM sees nothing of it but `directory`. */
  readonly home: string;
  /** the VMM sees it as /vm */
  readonly directory: string;
  readonly cgroup: Cgroup;
}

/** Paths in the host's directory of one machine. The record belongs to the owner of the machine. */
export function homePaths(home: string) {
  return {
    directory: join(home, "vm"),
    sockets: join(home, "run"),
    report: join(home, "exit"),
    record: join(home, "machine.json"),
  };
}

/** The launcher of a VMM, and the VMM's end. */
export interface LaunchedVmm extends ChildProcess {
  /** ties the launcher to this process */
  readonly lease: Lease;
}

/** A failed connection says less than the exit that follows it. */
const EXIT_MS_MAX = 1000;

/** Acquires a user id, a directory and a control group for a machine; `stack` gives them back. */
export async function openMachineHome(
  stack: AsyncDisposableStack,
  host: Pick<VmmHost, "uids" | "vmsDirectory" | "cgroups">,
  limits: { readonly shape: MachineShape; readonly pidsMax: number; readonly cpuWeight: number },
): Promise<MachineHome> {
  const id = Bun.randomUUIDv7();
  const lease = stack.use(await host.uids.acquire());
  const { uid } = lease;
  const home = join(host.vmsDirectory, id);
  const { directory } = homePaths(home);
  await mkdir(home, { mode: 0o700 });
  stack.defer(() => rm(home, { recursive: true, force: true }));
  await makePrivateDirectory(directory, uid);
  const { shape, pidsMax, cpuWeight } = limits;
  const cgroup = stack.use(
    await host.cgroups.create(id, { memoryBytes: machineMemoryBytes(shape), pids: pidsMax, cpuWeight }),
  );
  lease.usedBy(cgroup);
  return { id, uid, home, directory, cgroup };
}

/** Starts a VMM in the jail of its machine; `stack` kills it. */
export function launchVmm(
  stack: AsyncDisposableStack,
  { launcher }: Pick<VmAssets, "launcher">,
  { uid, home, directory, cgroup }: MachineHome,
  options: Omit<JailOptions, "launcher" | "uid" | "directory" | "cgroups" | "report">,
): LaunchedVmm {
  const path = homePaths(home).report;
  const report = openSync(path, "wx", 0o600);
  using _report = { [Symbol.dispose]: () => closeSync(report) };
  const child = launch({ ...options, launcher, uid, directory, cgroups: cgroup.directories, report });
  const lease = stack.use(new Lease(child.fds.at(-1) ?? -1));
  let end: ExitReport | null = null;
  const exited = child.exited.then(async (status) => {
    end = await readExitReport(path);
    return end?.status ?? status;
  });
  const process = { ...child, lease, exited, stderrTail: () => end?.stderr ?? child.stderrTail() };
  stack.defer(async () => {
    process.kill("SIGKILL");
    await process.exited;
  });
  return process;
}

/**
 * Waits for the first answer of a VMM that is starting.
 * @param program its name, for reports
 * @throws MachineEndedError when it ends instead; what `answer` rejects with
 */
export async function firstAnswer<T>(program: string, process: ChildProcess, answer: Promise<T>): Promise<T> {
  const died = process.exited.then((status) => throwStartFailure(program, status, process.stderrTail()));
  // The loser of the race may reject later, without a handler.
  died.catch(() => undefined);
  const answered = answer.catch(async (error) => {
    await withinTime(died, EXIT_MS_MAX, () => null);
    throw error;
  });
  answered.catch(() => undefined);
  return await Promise.race([answered, died]);
}

/**
 * Pid of the VMM, which the launcher has started in the machine's control group.
 * @throws MachineEndedError when it has ended meanwhile
 */
export async function vmmPid(program: string, process: ChildProcess, { cgroup }: MachineHome): Promise<number> {
  const pid = (await cgroup.pids()).find((candidate) => candidate !== process.pid && !isKernelThread(candidate));
  return pid ?? (await throwVmmGone(program, process));
}
