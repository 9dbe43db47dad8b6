import { askToStop, type StopRequest } from "../../api/operator/control.ts";
import type { Config } from "../../config/config.ts";
import type { RunningWork } from "../../domain/operator/restart.ts";
import { type DataLayout, dataLayout, hasData, lockData } from "../../storage/layout.ts";
import { serviceOf } from "../../system/systemd.ts";
import { processIdentity } from "../../vm/jail/processes.ts";
import { CliError } from "../command.ts";
import { endLeft, leftCount } from "../host/left-machines.ts";
import { counted, countedRunning, runningOf } from "../host/running.ts";
import { MACHINES_SERVICE, SERVICE, systemd } from "../host/service.ts";

const POLL_MS = 50;

export interface StopOptions {
  /** end everything that runs */
  readonly all: boolean;
  readonly timeoutMs: number;
}

/**
 * Stops the appliance of a data directory, and waits for its end. A service is stopped by systemd, which would restart it
 * otherwise.
 * @returns what was stopped, for the user
 * @throws CliError when it does not stop in time, or cannot be asked
 */
export async function stopAppliance({ dataDir }: Pick<Config, "dataDir">, options: StopOptions): Promise<string> {
  const layout = dataLayout(dataDir);
  const running = await runningOf(layout);
  if (running === "none") return await stopLeft(layout, options);
  if (running === "older") {
    throw new CliError("the running appliance is of an older version: stop it with systemctl stop coppice, or SIGTERM");
  }
  const count = await stopRunning(layout, running, options);
  if (options.all) return "stopped, with everything that ran";
  return count === 0 ? "stopped" : `stopped; ${countedRunning(count)} on until the next start takes over`;
}

/** Returns the number of machines that are left. */
async function stopRunning(layout: DataLayout, { pid }: RunningWork, { all, timeoutMs }: StopOptions): Promise<number> {
  const deadline = performance.now() + timeoutMs;
  const service = await serviceOf(pid);
  if (service === null) await ask(layout, { all, awaitsSignal: false }, pid);
  else {
    // The service ends everything before it is stopped, so that each operation ends with the reason.
    if (all) await ask(layout, { all, awaitsSignal: true }, pid);
    await systemd(["systemctl", "stop", service], timeoutMs);
  }
  while (processIdentity(pid) !== null) {
    if (performance.now() > deadline) {
      throw new CliError(`the appliance has not stopped within ${timeoutMs / 1000} s; its process is ${pid}`);
    }
    await Bun.sleep(POLL_MS);
  }
  if (all && service === SERVICE) await systemd(["systemctl", "stop", MACHINES_SERVICE]);
  return await leftCount(layout);
}

/** Asks the daemon to stop. It may have ended since it was seen. */
async function ask({ control }: DataLayout, request: StopRequest, pid: number): Promise<void> {
  try {
    await askToStop(control, request);
  } catch (error) {
    if (processIdentity(pid) !== null) throw error;
  }
}

/** Without a daemon, there are only machines that one has left. */
async function stopLeft(layout: DataLayout, { all }: StopOptions): Promise<string> {
  if (!hasData(layout)) throw new CliError(`there is no appliance's data in ${layout.root}`);
  using lock = await lockData(layout);
  if (lock === null) {
    throw new CliError("an appliance uses the data directory and does not answer: it may be starting or stopping");
  }
  const count = await leftCount(layout);
  if (all) await endLeft(layout);
  if (count === 0) return "no appliance runs";
  if (all) return `ended ${counted(count, "instance")} that an appliance had left`;
  return `no appliance runs; ${countedRunning(count)} on: coppice stop --all ends what is left`;
}
