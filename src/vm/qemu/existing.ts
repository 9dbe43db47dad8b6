import { rm } from "node:fs/promises";
import { join } from "node:path";
import { LibcError } from "../../system/libc.ts";
import { withinTime } from "../../system/waiting.ts";
import type { SocketChannel } from "../agent/channel.ts";
import type { VmAssets } from "../assets.ts";
import * as existing from "../jail/existing-vmm.ts";
import { textOf } from "../jail/machine-files.ts";
import { MachineEndedError, VmmError } from "../machine-end.ts";
import type { MachineExit, MachineRecord } from "../vmm.ts";
import { PROGRAM_NAME, QemuMachine } from "./machine.ts";
import { copyName } from "./mirror.ts";
import { Qmp, type QmpEvent } from "./qmp.ts";
import { connectToQemu } from "./sockets.ts";

/** A monitor answers within a millisecond; one that does not answer for this long cannot be used. */
const MONITOR_MS_MAX = 2000;
/** Time limit of everything that the monitor is asked before the machine continues: a hostile one delays each answer. */
const OPEN_MS_MAX = 10_000;
/** Time limit for the end of a cancelled copy of a disk. */
const CANCEL_MS_MAX = 5000;
/** Limit of entries that are read of a list: a machine has at most a thousand disks, and a few other nodes. */
const ENTRIES_COUNT_MAX = 4096;
const CANCEL_POLL_MS = 10;

type Entries = readonly Readonly<Record<string, unknown>>[];

/** The parts of the host that a machine needs which another process started. */
type ExistingHost = existing.ExistingHost & { readonly assets: Pick<VmAssets, "memoryCopier"> };

/**
 * Opens a machine that another process started and left: connects to its monitor and to its agent, brings it to the state
 * of the record, and continues it when it was paused for a copy. Copies of disks that were being made are cancelled. A
 * machine that cannot be opened is ended and removed. The caller has checked the record (`recordProblem`).
 * @throws MachineEndedError when the guest or the VMM ended meanwhile; VmmError when the machine is not as recorded
 */
async function openQemuMachine(host: ExistingHost, record: MachineRecord): Promise<QemuMachine> {
  await using stack = new AsyncDisposableStack();
  const { id, uid, shape, monitor } = record;
  const { home, directory, root, cgroup, process } = existing.openExistingHome(stack, host, record);
  const [stream, channel] = await connect(stack, home);
  const opening = Qmp.open(stream, () => process.closed());
  const qmp = await withinTime(opening, MONITOR_MS_MAX, () => {
    throw new VmmError("the machine's monitor does not answer");
  });
  const forks = { program: host.assets.memoryCopier, holdRoot: () => host.heldRoots.hold(root) };
  const parts = { id, uid, home, directory, cgroup, pid: monitor.pid, shape, channel, qmp, process, record, forks };
  const machine = new QemuMachine({ ...parts, owned: stack.move() });
  await using undo = new AsyncDisposableStack();
  undo.use(machine);
  const prepared = (async () => {
    await cancelCopies(machine);
    await checkDisks(machine.qmp, record);
    await continueGuest(machine);
  })();
  await withinTime(prepared, OPEN_MS_MAX, () => {
    throw new VmmError("the machine's monitor does not answer in time");
  });
  undo.move();
  return machine;
}

async function connect(stack: AsyncDisposableStack, home: string): Promise<[SocketChannel, SocketChannel]> {
  try {
    return [stack.use(await connectToQemu(home, "monitor")), stack.use(await connectToQemu(home, "agent"))];
  } catch (error) {
    if (!(error instanceof LibcError)) throw error;
    const exit = await unwatchedExit(home);
    if (exit !== null) throw new MachineEndedError(exit.detail, exit, { cause: error });
    throw new VmmError("the machine's monitor cannot be reached", { cause: error });
  }
}

/** How a machine ended while no process watched it; null when its launcher has not reported that. */
export async function unwatchedExit(home: string): Promise<MachineExit | null> {
  return await existing.unwatchedExit(PROGRAM_NAME, home);
}

async function query(qmp: Qmp, command: string, args?: Readonly<Record<string, unknown>>): Promise<Entries> {
  const answer = await qmp.execute(command, args);
  if (!Array.isArray(answer) || answer.length > ENTRIES_COUNT_MAX)
    throw new VmmError(`the monitor gave no list for ${command}`);
  return answer.filter((entry) => typeof entry === "object" && entry !== null);
}

async function cancelCopies({ qmp, directory }: QemuMachine): Promise<void> {
  const deadline = performance.now() + CANCEL_MS_MAX;
  for (let jobs = await query(qmp, "query-block-jobs"); jobs.length > 0; jobs = await query(qmp, "query-block-jobs")) {
    if (performance.now() > deadline) throw new VmmError("a copy of a disk cannot be cancelled");
    // Refused by a job that has ended since the query.
    const cancelled = jobs.map(({ device }) =>
      qmp.execute("block-job-cancel", { device: textOf(device), force: true }),
    );
    await Promise.allSettled(cancelled);
    await Bun.sleep(CANCEL_POLL_MS);
  }
  const nodes = await query(qmp, "query-named-block-nodes", { flat: true });
  for (const name of nodes.map((node) => node["node-name"])) {
    if (typeof name !== "string" || !copyName.test(name)) continue;
    await qmp.execute("blockdev-del", { "node-name": name });
    await rm(join(directory, name), { force: true });
  }
}

async function checkDisks(qmp: Qmp, { disks }: MachineRecord): Promise<void> {
  const devices = await query(qmp, "query-block");
  const nodes = devices.map(({ inserted }) => textOf((inserted as Entries[number] | null)?.["node-name"]));
  const expected = disks.map(({ node }) => node);
  if (nodes.sort().join() !== expected.sort().join()) throw new VmmError("the machine has other disks than recorded");
}

/**
 * Events between the two daemons are lost, so an event that would have ended the machine is made again from the state that it
 * left behind.
 */
async function continueGuest(machine: QemuMachine): Promise<void> {
  const answer = (await machine.qmp.execute("query-status")) as { status?: unknown } | null;
  const status = textOf(answer?.status);
  if (status === "running") return;
  if (status === "paused") {
    await machine.resume();
    return;
  }
  const event = await lostEvent(machine.qmp, status);
  if (event === null) throw new VmmError(`the machine is in the state ${status.slice(0, 32)}`);
  machine.takeEvent(event);
  const exit: MachineExit = await machine.exited;
  throw new MachineEndedError(exit.detail, exit);
}

async function lostEvent(qmp: Qmp, status: string): Promise<QmpEvent | null> {
  if (status === "guest-panicked") return { event: "GUEST_PANICKED", data: {} };
  if (status === "shutdown") return { event: "SHUTDOWN", data: { reason: "before this daemon started" } };
  if (status === "internal-error") return { event: "STOP", data: {} };
  if (status !== "io-error") return null;
  const isFull = (await query(qmp, "query-block")).some((device) => device["io-status"] === "nospace");
  return { event: "BLOCK_IO_ERROR", data: { operation: "access", nospace: isFull } };
}

export { openQemuMachine };
