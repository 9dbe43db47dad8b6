import { closeSync } from "node:fs";
import { chmod, chown, mkdir } from "node:fs/promises";
import { listenUnix, openSocketDirectory } from "../../system/unix-sockets.ts";
import { CpuWeight } from "../cpu-weight.ts";
import { firstAnswer, launchVmm, openMachineHome, type VmmHost, vmmPid } from "../jail/jailed-vmm.ts";
import { JAIL_LIMITS } from "../jail/launch.ts";
import type { VmmRoots } from "../jail/vmm-roots.ts";
import type { MachineRecord, MachineShape } from "../vmm.ts";
import { CloudHypervisorApi } from "./api.ts";
import { buildCloudHypervisorArgs } from "./config.ts";
import { createEventPipe, EventReader } from "./event-pipe.ts";
import { runDirectory } from "./files.ts";
import { CloudHypervisorMachine, PROGRAM_NAME } from "./machine.ts";

/** Settings that all VMMs of a driver share. */
export interface CloudHypervisorHost extends VmmHost {
  readonly program: string;
  /** version of the program, without the `v` */
  readonly version: string;
  readonly roots: VmmRoots;
  readonly devices: readonly string[];
}

/** Limits of one VMM. */
export interface CloudHypervisorBounds {
  /** largest file that it may write, in `bytes` */
  readonly fileBytesMax: number;
  /** see `CpuWeight`; default: the weight of a machine in use */
  readonly cpuWeight?: number;
  /** of a copy: the disks that it has, and what it owns; default: none */
  readonly copy?: { readonly record: Pick<MachineRecord, "disks" | "nextLun">; readonly used: Disposable };
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
  const { fileBytesMax, cpuWeight = CpuWeight.inUse, copy } = bounds;
  if (copy !== undefined) stack.use(copy.used);
  // Also a machine that outlives this process needs its root.
  const { path: root } = stack.use(host.roots.hold(host.roots.current));
  const home = await openMachineHome(stack, host, { shape, pidsMax: LIMITS.threadsMax, cpuWeight });
  const { uid, directory } = home;
  const shortPath = openSocketDirectory(stack, directory);
  await mkdir(runDirectory(directory), { mode: 0o700 });
  await chown(runDirectory(directory), uid, uid);
  using passed = new DisposableStack();
  const eventsFd = await createEventPipe(passed, home.home);
  const events = stack.use(EventReader.open(home.home));
  const process = withListener(`${shortPath}/api.sock`, (listener) =>
    launchVmm(stack, host.assets, home, {
      root,
      devices: host.devices,
      fileBytesMax,
      limits: LIMITS,
      // For disks.
      calls: ["io-uring"],
      extraFds: [listener, eventsFd],
      program: buildCloudHypervisorArgs(host.program, { api: API_FD, events: EVENTS_FD }),
    }),
  );
  passed.dispose();
  const api = new CloudHypervisorApi(`${shortPath}/api.sock`);
  await firstAnswer(PROGRAM_NAME, process, api.ping());
  const pid = await vmmPid(PROGRAM_NAME, process, home);
  const socketDirectory = openSocketDirectory(stack, runDirectory(directory));
  const record = { ...copy?.record, version: host.version, root };
  const { vmsDirectory } = host;
  const { lease } = process;
  const hasNewStream = copy !== undefined;
  const own = { pid, shape, socketDirectory, api, events, process, lease, record, vmsDirectory, hasNewStream };
  const parts = { ...home, ...own };
  return new CloudHypervisorMachine({ ...parts, owned: stack.move() });
}

/** Opens the listening socket for the VMM: calls can connect at once, and the VMM needs no right to create a file. */
function withListener<T>(socket: string, start: (fd: number) => T): T {
  using stack = new DisposableStack();
  const fd = listenUnix(socket);
  stack.defer(() => closeSync(fd));
  return start(fd);
}

/**
 * Takes the run directory from the VMM when its sockets exist. A guest that takes over the VMM then cannot create files
 * there, nor put another socket or a link where the daemon connects.
 */
export async function closeRunDirectory(machine: CloudHypervisorMachine): Promise<void> {
  await chown(runDirectory(machine.directory), 0, machine.uid);
  await chmod(runDirectory(machine.directory), 0o710);
}
