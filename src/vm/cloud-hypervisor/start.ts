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
import { gone, notStarted } from "../machine-end.ts";
import { machineMemoryBytes } from "../machine-memory.ts";
import type { MachineShape } from "../vmm.ts";
import { CloudHypervisorApi } from "./api.ts";
import { buildCloudHypervisorArgs } from "./config.ts";
import { CloudHypervisorMachine, PROGRAM_NAME } from "./machine.ts";

/** What every VMM of a driver is started with. */
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

/** What a VMM may use. */
export interface CloudHypervisorBounds {
  /** largest file that it may write */
  readonly fileBytesMax: number;
  /** its share of the processors from its start on; default is that of a machine in use */
  readonly cpuWeight?: number;
}

/** Descriptors of the VMM in the order of `extraFds`. */
const API_FD = 3;
const EVENTS_FD = 4;
/** Each disk has a thread and some ten descriptors, and of disks there can be 129. */
const LIMITS = { ...JAIL_LIMITS, openFilesMax: 4096, threadsMax: 512 };

/**
 * Starts a jailed VMM without a machine in it and waits until it answers. Its sockets' directory can be written
 * until `closeRunDirectory`.
 * @throws Error with the end of its standard error when it does not start
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
  const place = openDirectory(stack, directory);
  await mkdir(runDirectory(directory), { mode: 0o700 });
  await chown(runDirectory(directory), uid, uid);
  const { fileBytesMax, cpuWeight = CpuWeight.inUse } = bounds;
  const limits = { memoryBytes: machineMemoryBytes(shape), pids: LIMITS.threadsMax, cpuWeight };
  const cgroup = stack.use(await host.cgroups.create(id, limits));
  lease.giveTo(cgroup);
  const process = launchOn(`${place}/api.sock`, host, { uid, directory, cgroups: cgroup.directories, fileBytesMax });
  stack.defer(async () => {
    process.kill("SIGKILL");
    await process.exited;
  });
  const events = stack.use(await SocketChannel.open(process.fds[0] ?? -1));
  const api = new CloudHypervisorApi(`${place}/api.sock`);
  await answering(api, process);
  const pid = (await cgroup.pids()).find((candidate) => candidate !== process.pid);
  if (pid === undefined) return await gone(PROGRAM_NAME, process);
  const socketDirectory = openDirectory(stack, runDirectory(directory));
  const parts = { id, uid, pid, shape, directory, socketDirectory, cgroup, api, events, process };
  return new CloudHypervisorMachine({ ...parts, owned: stack.move() });
}

/** Listens for the VMM, so that it can be called before it is there, and makes no file itself. */
function launchOn(
  socket: string,
  host: CloudHypervisorHost,
  place: { uid: number; directory: string; cgroups: readonly string[]; fileBytesMax: number },
): ChildProcess {
  using listener = new DisposableStack();
  const fd = listenUnix(socket);
  listener.defer(() => closeSync(fd));
  return launch({
    launcher: host.assets.launcher,
    root: host.root,
    directory: place.directory,
    uid: place.uid,
    cgroups: place.cgroups,
    devices: host.devices,
    fileBytesMax: place.fileBytesMax,
    limits: LIMITS,
    // It reads and writes disks by the one, and restores memory on demand by the other.
    calls: ["io-uring", "userfaultfd"],
    extraFds: [fd, "socket"],
    program: buildCloudHypervisorArgs(host.program, { api: API_FD, events: EVENTS_FD }),
  });
}

async function answering(api: CloudHypervisorApi, process: ChildProcess): Promise<void> {
  const died = process.exited.then((status) => notStarted(PROGRAM_NAME, status, process.stderrTail()));
  const answered = api.ping();
  // The loser of the race fails later, when nobody listens any more.
  died.catch(() => undefined);
  answered.catch(() => undefined);
  // A connection that closes says less than the exit that follows; wait for that, but not for ever.
  const late = answered.catch(async (error) => {
    await withinTime(died, 1000, () => null);
    throw error;
  });
  late.catch(() => undefined);
  await Promise.race([late, died]);
}

function runDirectory(directory: string): string {
  return join(directory, "run");
}

/**
 * Takes the directory of the sockets away from the VMM, which has made them: whoever takes it over finds no place for
 * files, and cannot put another socket or a link where the daemon connects.
 */
export async function closeRunDirectory(machine: CloudHypervisorMachine): Promise<void> {
  await chown(runDirectory(machine.directory), 0, machine.uid);
  await chmod(runDirectory(machine.directory), 0o710);
}

/** Puts a file of the daemon's into a machine's directory, read-only for its VMM. */
export async function placeFile(source: string, target: string): Promise<void> {
  try {
    await link(source, target);
  } catch (error) {
    // EXDEV: it lies on another file system.
    if ((error as NodeJS.ErrnoException).code !== "EXDEV") throw error;
    await copyFile(source, target, constants.COPYFILE_EXCL);
    await chmod(target, 0o444);
  }
}

/** A path to an open directory that is short enough for sockets in it. */
function openDirectory(stack: AsyncDisposableStack, path: string): string {
  const fd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  stack.defer(() => closeSync(fd));
  return `/proc/self/fd/${fd}`;
}
