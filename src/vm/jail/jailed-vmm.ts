import { join } from "node:path";
import type { Cgroup, CgroupTree } from "../../cgroup/cgroup.ts";
import type { Log } from "../../log.ts";
import type { ChildProcess } from "../../system/exec.ts";
import { withinTime } from "../../system/waiting.ts";
import type { VmAssets } from "../assets.ts";
import { throwStartFailure, throwVmmGone } from "../machine-end.ts";
import { machineMemoryBytes } from "../machine-memory.ts";
import type { MachineShape } from "../vmm.ts";
import { type JailOptions, launch } from "./launch.ts";
import { privateDirectory } from "./machine-files.ts";
import type { UidPool } from "./uid-pool.ts";

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
  readonly log: Log;
}

/** The parts of the host that belong to one machine alone. */
export interface MachineHome {
  readonly id: string;
  readonly uid: number;
  /** the VMM sees it as /vm */
  readonly directory: string;
  readonly cgroup: Cgroup;
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
  const directory = await privateDirectory(stack, join(host.vmsDirectory, id), uid);
  const { shape, pidsMax, cpuWeight } = limits;
  const cgroup = stack.use(
    await host.cgroups.create(id, { memoryBytes: machineMemoryBytes(shape), pids: pidsMax, cpuWeight }),
  );
  lease.usedBy(cgroup);
  return { id, uid, directory, cgroup };
}

/** Starts a VMM in the jail of its machine; `stack` kills it. */
export function launchVmm(
  stack: AsyncDisposableStack,
  { launcher }: Pick<VmAssets, "launcher">,
  { uid, directory, cgroup }: MachineHome,
  options: Omit<JailOptions, "launcher" | "uid" | "directory" | "cgroups">,
): ChildProcess {
  const process = launch({ ...options, launcher, uid, directory, cgroups: cgroup.directories });
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
  const pid = (await cgroup.pids()).find((candidate) => candidate !== process.pid);
  return pid ?? (await throwVmmGone(program, process));
}
