import { openSocketDirectory } from "../../system/unix-sockets.ts";
import { withinTime } from "../../system/waiting.ts";
import { type ExistingHost, openExistingHome, unwatchedExit } from "../jail/existing-vmm.ts";
import { MachineEndedError, VmmError, withExitReason } from "../machine-end.ts";
import type { MachineRecord } from "../vmm.ts";
import { CloudHypervisorApi, CloudHypervisorApiError } from "./api.ts";
import { keepsConsole } from "./console.ts";
import { EventReader } from "./event-pipe.ts";
import { runDirectory } from "./files.ts";
import { forkDirectory } from "./fork.ts";
import { CloudHypervisorMachine, PROGRAM_NAME } from "./machine.ts";
import { removeSnapshot } from "./snapshot.ts";

/** Machines with more disks are not asked for their state: see `CloudHypervisorApi.info`. */
const INFO_DISKS_COUNT_MAX = 24;
/** Limit of all answers of the monitor. One that was writing a snapshot answers when that is done. */
const MONITOR_MS_MAX = 10_000;

/**
 * Opens a machine that another process started and left: reads its events, including those of the time between, continues it
 * when it was paused for a copy, and connects to its agent again. A machine that cannot be opened is ended and removed. The
 * caller has checked the record (`recordProblem`).
 * @throws MachineEndedError when the guest or the VMM ended meanwhile; VmmError when the machine is not as recorded
 */
async function openCloudHypervisorMachine(host: ExistingHost, record: MachineRecord): Promise<CloudHypervisorMachine> {
  await using stack = new AsyncDisposableStack();
  const { id, uid, shape, monitor } = record;
  const { home, directory, cgroup, process } = openExistingHome(stack, host, record);
  const exit = await unwatchedExit(PROGRAM_NAME, home);
  if (exit !== null) throw new MachineEndedError(exit.detail, exit);
  const api = new CloudHypervisorApi(`${openSocketDirectory(stack, directory)}/api.sock`);
  const socketDirectory = openSocketDirectory(stack, runDirectory(directory));
  const events = stack.use(EventReader.open(home));
  const closed = () => process.closed();
  const parts = { id, uid, home, directory, cgroup, pid: monitor.pid, shape, socketDirectory, api, events, process };
  const { vmsDirectory } = host;
  const machine = new CloudHypervisorMachine({ ...parts, closed, record, vmsDirectory, owned: stack.move() });
  await using undo = new AsyncDisposableStack();
  undo.use(machine);
  await withExitReason(machine, () =>
    withinTime(continueGuest(machine, record), MONITOR_MS_MAX, () => {
      throw new VmmError(`the machine's monitor did not answer within ${MONITOR_MS_MAX} ms`);
    }),
  );
  await removeSnapshot(forkDirectory(directory));
  if (!keepsConsole(record.version)) await machine.openConsole();
  machine.openChannel();
  undo.move();
  return machine;
}

/** The VMM tells in which state the guest is; the requests of the process before may have been done or not. */
async function continueGuest(machine: CloudHypervisorMachine, { disks }: MachineRecord): Promise<void> {
  if (disks.length > INFO_DISKS_COUNT_MAX) {
    // Refused unless it is paused. A guest that is off does not greet, and the pipe has the event.
    await machine.resume().catch((error: Error) => {
      if (!(error instanceof CloudHypervisorApiError)) throw error;
    });
    return;
  }
  const { state } = await machine.api.info();
  if (state === "Running") return;
  if (state === "Paused") {
    await machine.resume();
    return;
  }
  machine.takeEvent({ source: "vm", event: "shutdown", properties: {} });
  const exit = await machine.exited;
  throw new MachineEndedError(exit.detail, exit);
}

export { openCloudHypervisorMachine };
