import { closeSync, constants } from "node:fs";
import { chmod, chown, copyFile, link, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { listenUnix, openSocketDirectory } from "../../system/unix-sockets.ts";
import { SocketChannel } from "../agent/channel.ts";
import { CpuWeight } from "../cpu-weight.ts";
import { firstAnswer, launchVmm, openMachineHome, type VmmHost, vmmPid } from "../jail/jailed-vmm.ts";
import { JAIL_LIMITS } from "../jail/launch.ts";
import type { MachineShape } from "../vmm.ts";
import { CloudHypervisorApi } from "./api.ts";
import { buildCloudHypervisorArgs } from "./config.ts";
import { CloudHypervisorMachine, PROGRAM_NAME } from "./machine.ts";

/** Settings that all VMMs of a driver share. */
export interface CloudHypervisorHost extends VmmHost {
  readonly program: string;
  readonly root: string;
  readonly devices: readonly string[];
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
  const { fileBytesMax, cpuWeight = CpuWeight.inUse } = bounds;
  const home = await openMachineHome(stack, host, { shape, pidsMax: LIMITS.threadsMax, cpuWeight });
  const { uid, directory } = home;
  const shortPath = openSocketDirectory(stack, directory);
  await mkdir(runDirectory(directory), { mode: 0o700 });
  await chown(runDirectory(directory), uid, uid);
  const process = withListener(`${shortPath}/api.sock`, (listener) =>
    launchVmm(stack, host.assets, home, {
      root: host.root,
      devices: host.devices,
      fileBytesMax,
      limits: LIMITS,
      // io_uring is for disks, userfaultfd for restoring memory on demand.
      calls: ["io-uring", "userfaultfd"],
      extraFds: [listener, "socket"],
      program: buildCloudHypervisorArgs(host.program, { api: API_FD, events: EVENTS_FD }),
    }),
  );
  const events = stack.use(await SocketChannel.open(process.fds[0] ?? -1));
  const api = new CloudHypervisorApi(`${shortPath}/api.sock`);
  await firstAnswer(PROGRAM_NAME, process, api.ping());
  const pid = await vmmPid(PROGRAM_NAME, process, home);
  const socketDirectory = openSocketDirectory(stack, runDirectory(directory));
  const parts = { ...home, pid, shape, socketDirectory, api, events, process };
  return new CloudHypervisorMachine({ ...parts, owned: stack.move() });
}

/** Opens the listening socket for the VMM: calls can connect at once, and the VMM needs no right to create a file. */
function withListener<T>(socket: string, start: (fd: number) => T): T {
  using stack = new DisposableStack();
  const fd = listenUnix(socket);
  stack.defer(() => closeSync(fd));
  return start(fd);
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
