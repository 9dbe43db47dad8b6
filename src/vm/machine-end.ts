import { constants } from "node:os";
import { type ChildProcess, CommandError, type ExitStatus } from "../system/exec.ts";
import { withinTime } from "../system/waiting.ts";
import { AgentError } from "./agent/errors.ts";
import { printable } from "./jail/machine-files.ts";
import type { Machine, MachineExit } from "./vmm.ts";

/** The launcher passes its program's end on as a shell would: this and the signal's number. */
const SIGNAL_EXIT_BASE = 128;
const SIGNALS_MAX = 64;
/** Signals that a process is sent; it gets all others for what it did itself. */
const SENT_SIGNALS: readonly number[] = [
  constants.signals.SIGHUP,
  constants.signals.SIGINT,
  constants.signals.SIGKILL,
  constants.signals.SIGTERM,
];
/** A call that fails may be the first sign of a machine that is ending. */
const EXIT_MS_MAX = 500;

/** A VMM refused, did not answer, or is gone. Its message says nothing that a caller may not know. */
export class VmmError extends Error {
  override readonly name: string = "VmmError";
}

/** A machine ended, or its VMM did not start, before what was asked of it was done. */
export class MachineEndedError extends VmmError {
  override readonly name = "MachineEndedError";
  readonly exit: MachineExit;

  constructor(message: string, exit: MachineExit, options?: ErrorOptions) {
    super(message, options);
    this.exit = exit;
  }
}

/** How a process ended, in words. */
export function describeExit(status: ExitStatus): string {
  const signal = signalOf(status);
  return signal === null ? `exit code ${status.code}` : `killed by signal ${signal}`;
}

/** How a VMM ended that nobody here ended. */
export function monitorExit(program: string, status: ExitStatus, stderr: string): MachineExit {
  const signal = signalOf(status);
  const how = signal === null ? `ended with exit code ${status.code}` : `was killed by signal ${signal}`;
  const exit: MachineExit = {
    reason: "vmm_died",
    detail: `${program} ${how}${stderr === "" ? "" : `: ${stderr}`}`,
    monitor: `${program}, ${describeExit(status)}`,
  };
  // A VMM ends well when a signal asks it to; here it is asked by nobody else.
  if (signal === null) return status.code === 0 ? { ...exit, by: "signal" } : exit;
  return { ...exit, by: SENT_SIGNALS.includes(signal) ? "signal" : "crash" };
}

/** @throws MachineEndedError, once the process of a VMM has ended that should have started */
export function notStarted(program: string, status: ExitStatus, stderr: string): never {
  const said = printable(stderr);
  const message = `${program} did not start (${describeExit(status)})${said === "" ? "" : `: ${said}`}`;
  throw new MachineEndedError(message, monitorExit(program, status, said));
}

/**
 * For a VMM that has started, but is not among the processes of its machine.
 * @throws MachineEndedError when it has ended meanwhile; Error when it has not
 */
export async function gone(program: string, process: Pick<ChildProcess, "exited" | "stderrTail">): Promise<never> {
  const status = await withinTime(process.exited, EXIT_MS_MAX, () => null);
  if (status === null) throw new Error(`${program} is not in its control group`);
  return notStarted(program, status, process.stderrTail());
}

/**
 * Does work with a machine; where the machine's own end made it fail, that is thrown.
 * @throws MachineEndedError; what the work throws, at once where `signal` fired
 */
export async function tellingEnd<T>(machine: Machine, work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  try {
    return await work();
  } catch (error) {
    // Of a machine whose guest answered there is nothing more to hear.
    if (signal?.aborted === true || error instanceof AgentError || endOf(error) !== null) throw error;
    const exit = await withinTime(machine.exited, EXIT_MS_MAX, () => null);
    if (exit === null || exit.reason === "killed") throw error;
    const sign = error instanceof Error ? `${error.message}: ` : "";
    throw new MachineEndedError(`${sign}${exit.detail}`, exit, { cause: error });
  }
}

/** The end of a machine that made something fail; null where none did. */
export function endOf(error: unknown): MachineExit | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof MachineEndedError) return cause.exit;
  }
  return null;
}

/** How a process of a VMM ended by a signal, if that made something fail: one that it was sent, or that it earned. */
export function signalled(error: unknown): "signal" | "crash" | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof CommandError && cause.signal !== null && !cause.timedOut) return "signal";
  }
  return endOf(error)?.by ?? null;
}

/** Number of the signal that ended a process; null for one that exited. */
function signalOf({ code, signal }: ExitStatus): number | null {
  if (signal !== null) return (constants.signals as Readonly<Record<string, number>>)[signal] ?? Number(signal);
  if (code === null || code <= SIGNAL_EXIT_BASE || code > SIGNAL_EXIT_BASE + SIGNALS_MAX) return null;
  return code - SIGNAL_EXIT_BASE;
}
