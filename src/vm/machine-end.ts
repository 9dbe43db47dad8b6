import { constants } from "node:os";
import { type ChildProcess, CommandError, type ExitStatus } from "../system/exec.ts";
import { withinTime } from "../system/waiting.ts";
import { AgentError } from "./agent/errors.ts";
import { printable } from "./jail/machine-files.ts";
import type { Machine, MachineExit } from "./vmm.ts";

/** Like a shell, the launcher reports a program that a signal ended with exit code 128 plus the signal's number. */
const SIGNAL_EXIT_BASE = 128;
const SIGNALS_MAX = 64;
/** Signals that other processes send. A process brings every other signal on itself by a fault. */
const SENT_SIGNALS: readonly number[] = [
  constants.signals.SIGHUP,
  constants.signals.SIGINT,
  constants.signals.SIGKILL,
  constants.signals.SIGTERM,
];
/** A failed call may be the first sign of a machine that is ending; this is the longest wait for its exit. */
const EXIT_MS_MAX = 500;

/** The VMM refused a request, did not answer, or is gone. The message may be shown to API clients. */
export class VmmError extends Error {
  override readonly name: string = "VmmError";
}

/** Saved memory cannot be continued on this host now. The message says why, about the memory: "its memory was …". */
export class NotResumableError extends VmmError {
  override readonly name: string = "NotResumableError";
}

/** Files of saved memory are damaged or missing: it can never be continued. */
export class DamagedMemoryError extends NotResumableError {
  override readonly name = "DamagedMemoryError";
}

/** The machine ended, or its VMM did not start, before the work was done. */
export class MachineEndedError extends VmmError {
  override readonly name = "MachineEndedError";
  readonly exit: MachineExit;

  constructor(message: string, exit: MachineExit, options?: ErrorOptions) {
    super(message, options);
    this.exit = exit;
  }
}

/** Describes in words how a process ended. */
export function describeExit(status: ExitStatus): string {
  const signal = signalOf(status);
  return signal === null ? `exit code ${status.code}` : `killed by signal ${signal}`;
}

/** The exit of a VMM that the daemon did not end. */
export function monitorExit(program: string, status: ExitStatus, stderr: string): MachineExit {
  const signal = signalOf(status);
  const how = signal === null ? `ended with exit code ${status.code}` : `was killed by signal ${signal}`;
  const exit: MachineExit = {
    reason: "vmm_died",
    detail: `${program} ${how}${stderr === "" ? "" : `: ${stderr}`}`,
    monitor: `${program}, ${describeExit(status)}`,
  };
  // QEMU exits with 0 when it gets SIGTERM; the daemon does not send it that.
  if (signal === null) return status.code === 0 ? { ...exit, by: "signal" } : exit;
  return { ...exit, by: SENT_SIGNALS.includes(signal) ? "signal" : "crash" };
}

/** @throws MachineEndedError always: the VMM's process ended instead of starting up */
export function throwStartFailure(program: string, status: ExitStatus, stderr: string): never {
  const said = printable(stderr);
  const message = `${program} did not start (${describeExit(status)})${said === "" ? "" : `: ${said}`}`;
  throw new MachineEndedError(message, monitorExit(program, status, said));
}

/**
 * Reports a VMM that started but is missing from the cgroup of its machine.
 * @throws MachineEndedError when it has ended; Error when it still runs
 */
export async function throwVmmGone(
  program: string,
  process: Pick<ChildProcess, "exited" | "stderrTail">,
): Promise<never> {
  const status = await withinTime(process.exited, EXIT_MS_MAX, () => null);
  if (status === null) throw new Error(`${program} is not in its control group`);
  return throwStartFailure(program, status, process.stderrTail());
}

/**
 * Runs `work` with a machine. When the work fails because the machine ended, the error gives the reason of that end.
 * @throws MachineEndedError when the machine ended; otherwise the error of the work, at once when `signal` is aborted
 */
export async function withExitReason<T>(machine: Machine, work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  try {
    return await work();
  } catch (error) {
    // The guest answered with an error, so the machine is alive.
    if (signal?.aborted === true || error instanceof AgentError || machineExitOf(error) !== null) throw error;
    const exit = await withinTime(machine.exited, EXIT_MS_MAX, () => null);
    if (exit === null || exit.reason === "killed") throw error;
    const sign = error instanceof Error ? `${error.message}: ` : "";
    throw new MachineEndedError(`${sign}${exit.detail}`, exit, { cause: error });
  }
}

/** The exit of the machine that caused an error; null when no machine ended. */
export function machineExitOf(error: unknown): MachineExit | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof MachineEndedError) return cause.exit;
  }
  return null;
}

/**
 * The kind of the signal that ended a VMM's process and so caused an error: "signal" for one that another process sent,
 * "crash" for a fault of the VMM itself, null when no signal was involved.
 */
export function signalKindOf(error: unknown): "signal" | "crash" | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof CommandError && cause.signal !== null && !cause.timedOut) return "signal";
  }
  return machineExitOf(error)?.by ?? null;
}

/** Number of the signal that ended a process; null when the process exited. */
function signalOf({ code, signal }: ExitStatus): number | null {
  if (signal !== null) return (constants.signals as Readonly<Record<string, number>>)[signal] ?? Number(signal);
  if (code === null || code <= SIGNAL_EXIT_BASE || code > SIGNAL_EXIT_BASE + SIGNALS_MAX) return null;
  return code - SIGNAL_EXIT_BASE;
}
