import { closeSync, constants, openSync } from "node:fs";
import { chmod, chown, copyFile, link, mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { CgroupTree } from "../../cgroup/cgroup.ts";
import type { Log } from "../../log.ts";
import type { ChildProcess } from "../../system/exec.ts";
import { listenUnix } from "../../system/unix-sockets.ts";
import { withinTime } from "../../system/waiting.ts";
import { SocketChannel } from "../agent/channel.ts";
import type { VmAssets } from "../assets.ts";
import { CpuWeight } from "../cpu-weight.ts";
import { JAIL_LIMITS, launch } from "../jail/launch.ts";
import { privateDirectory } from "../jail/machine-files.ts";
import type { UidPool } from "../jail/uid-pool.ts";
import { throwStartFailure, throwVmmGone } from "../machine-end.ts";
import { machineMemoryBytes } from "../machine-memory.ts";
import type { MachineShape } from "../vmm.ts";
import { CloudHypervisorApi } from "./api.ts";
import { buildCloudHypervisorArgs } from "./config.ts";
import { CloudHypervisorMachine, PROGRAM_NAME } from "./machine.ts";

/** Settings that all VMMs of a driver share. */
export interface CloudHypervisorHost {
  readonly program: string;
  readonly root: string;
  readonly assets: VmAssets;
  readonly vmsDirectory: string;
  readonly cgroups: CgroupTree;
  readonly uids: UidPool;
  readonly devices: readonly string[];
  readonly log: Log;
}

/** Limits of one VMM. */
export interface CloudHypervisorBounds {
  /** largest file that it may write, in `bytes` */
  readonly fileBytesMax: number;
  /** see `CpuWeight`; default: the weight of a machine in use */
  readonly cpuWeight?: number;
}

/** Descriptors of the VMM in the order of `extraFds`. */
const API_FD = 3;
const EVENTS_FD = 4;
/** Each disk has a thread and some ten descriptors, and a machine can have 129 disks. */
const LIMITS = { ...JAIL_LIMITS, openFilesMax: 4096, threadsMax: 512 };

/**
 * Starts a jailed VMM without a machine and waits until it answers. The VMM can create sockets in its run directory until
 * `closeRunDirectory`.
 * @throws MachineEndedError, with the end of its standard error, when it does not start
 */
export async function startCloudHypervisor(
  host: CloudHypervisorHost,
  shape: MachineShape,
  bounds: CloudHypervisorBounds,
): Promise<CloudHypervisorMachine> {
  await using stack = new AsyncDisposableStack();
  const id = Bun.randomUUIDv7();
  const lease = stack.use(await host.uids.acquire());
  const { uid } = lease;
  const directory = await privateDirectory(stack, join(host.vmsDirectory, id), uid);
  const shortPath = openDirectory(stack, directory);
  await mkdir(runDirectory(directory), { mode: 0o700 });
  await chown(runDirectory(directory), uid, uid);
  const { fileBytesMax, cpuWeight = CpuWeight.inUse } = bounds;
  const limits = { memoryBytes: machineMemoryBytes(shape), pids: LIMITS.threadsMax, cpuWeight };
  const cgroup = stack.use(await host.cgroups.create(id, limits));
  lease.usedBy(cgroup);
  const process = launchOn(`${shortPath}/api.sock`, host, {
    uid,
    directory,
    cgroups: cgroup.directories,
    fileBytesMax,
  });
  stack.defer(async () => {
    process.kill("SIGKILL");
    await process.exited;
  });
  const events = stack.use(await SocketChannel.open(process.fds[0] ?? -1));
  const api = new CloudHypervisorApi(`${shortPath}/api.sock`);
  await waitForPing(api, process);
  const pid = (await cgroup.pids()).find((candidate) => candidate !== process.pid);
  if (pid === undefined) return await throwVmmGone(PROGRAM_NAME, process);
  const socketDirectory = openDirectory(stack, runDirectory(directory));
  const parts = { id, uid, pid, shape, directory, socketDirectory, cgroup, api, events, process };
  return new CloudHypervisorMachine({ ...parts, owned: stack.move() });
}

/** Opens the listening socket for the VMM: calls can connect at once, and the VMM needs no right to create a file. */
function launchOn(
  socket: string,
  host: CloudHypervisorHost,
  jail: { uid: number; directory: string; cgroups: readonly string[]; fileBytesMax: number },
): ChildProcess {
  using listener = new DisposableStack();
  const fd = listenUnix(socket);
  listener.defer(() => closeSync(fd));
  return launch({
    launcher: host.assets.launcher,
    root: host.root,
    directory: jail.directory,
    uid: jail.uid,
    cgroups: jail.cgroups,
    devices: host.devices,
    fileBytesMax: jail.fileBytesMax,
    limits: LIMITS,
    // io_uring is for disks, userfaultfd for restoring memory on demand.
    calls: ["io-uring", "userfaultfd"],
    extraFds: [fd, "socket"],
    program: buildCloudHypervisorArgs(host.program, { api: API_FD, events: EVENTS_FD }),
  });
}

async function waitForPing(api: CloudHypervisorApi, process: ChildProcess): Promise<void> {
  const died = process.exited.then((status) => throwStartFailure(PROGRAM_NAME, status, process.stderrTail()));
  const answered = api.ping();
  // The loser of the race may reject later, when nobody handles it.
  died.catch(() => undefined);
  answered.catch(() => undefined);
  // A closed connection says less than the exit that follows; wait for that, within a limit.
  const explained = answered.catch(async (error) => {
    await withinTime(died, 1000, () => null);
    throw error;
  });
  explained.catch(() => undefined);
  await Promise.race([explained, died]);
}

function runDirectory(directory: string): string {
  return join(directory, "run");
}

/**
 * Takes the run directory from the VMM when its sockets exist. A guest that takes over the VMM then cannot create files
 * there, nor put another socket or a link where the daemon connects.
 */
export async function closeRunDirectory(machine: CloudHypervisorMachine): Promise<void> {
  await chown(runDirectory(machine.directory), 0, machine.uid);
  await chmod(runDirectory(machine.directory), 0o710);
}

/** Puts a file of the daemon into a machine's directory, read-only for its VMM. */
export async function placeFile(source: string, target: string): Promise<void> {
  try {
    await link(source, target);
  } catch (error) {
    // EXDEV: the file lies on another file system.
    if ((error as NodeJS.ErrnoException).code !== "EXDEV") throw error;
    await copyFile(source, target, constants.COPYFILE_EXCL);
    await chmod(target, 0o444);
  }
}

/** A short path to an open directory, because a socket's path is limited to 107 bytes. */
function openDirectory(stack: AsyncDisposableStack, path: string): string {
  const fd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  stack.defer(() => closeSync(fd));
  return `/proc/self/fd/${fd}`;
}
