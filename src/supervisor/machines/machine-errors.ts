import { ApiError } from "../../domain/errors.ts";
import { LayerIndexError } from "../../storage/index/layer-index-format.ts";
import { withinTime } from "../../system/waiting.ts";
import { AgentClosedError, AgentError, AgentProtocolError, AgentRefusedError } from "../../vm/agent/agent.ts";
import { machineExitOf, signalKindOf, VmmError } from "../../vm/machine-end.ts";
import type { Machine, MachineExit, MachineShape } from "../../vm/vmm.ts";
import { agentFailure } from "./guest-errors.ts";

/** Bounds the wait for the exit of a VMM whose agent has closed its connection; it usually exits at once. */
const EXIT_MS_MAX = 5000;
/** Bounds the wait for an exit that may explain another failure. */
const EXIT_AFTER_OTHER_MS_MAX = 500;

const EXIT_TEXT: Record<MachineExit["reason"], string> = {
  killed: "it was killed by the host",
  guest_panic: "the guest kernel panicked",
  guest_reset: "the guest reset itself, as a kernel does after a panic",
  guest_shutdown: "the guest powered itself off",
  disk_full: "the disk of the service is full",
  disk_error: "the disk of the service failed",
  vmm_died: "the virtual machine monitor died",
};

/** A machine ended, or became useless, while work was done in it. */
export class MachineLostError extends ApiError {
  /** null when the machine still runs, but its VMM or agent has failed */
  readonly exit: MachineExit | null;

  constructor(exit: MachineExit | null, message: string, cause: unknown) {
    const details = exit === null ? {} : { reason: exit.reason, detail: exit.detail };
    super(exit?.reason === "disk_full" ? "insufficient_storage" : "unavailable", message, details, { cause });
    this.exit = exit;
  }
}

/** The error for a machine that ended before its work was done. */
export function endedEarly(exit: MachineExit, cause?: unknown): MachineLostError {
  const message = `the virtual machine ended early: ${EXIT_TEXT[exit.reason]}${monitorOf(exit)}`;
  return new MachineLostError(exit, message, cause);
}

/** The error for a machine that ended before `goal`, such as `the command began`. */
export function lostBefore(goal: string, exit: MachineExit, cause: unknown): MachineLostError {
  return new MachineLostError(exit, endedBefore(goal, exit), cause);
}

function endedBefore(goal: string, exit: MachineExit): string {
  if (exit.reason === "vmm_died") return `the virtual machine monitor ended before ${goal}${monitorOf(exit)}`;
  return `the virtual machine ended before ${goal}: ${EXIT_TEXT[exit.reason]}`;
}

function monitorOf({ monitor }: MachineExit): string {
  return monitor === undefined ? "" : ` (${monitor})`;
}

/**
 * The error for callers when no machine could be started. Other messages are left out: they may name host paths.
 * @param shape the shape, when only machines of this shape cannot be started
 */
export function startFailure(error: unknown, shape: MachineShape | null = null): ApiError {
  if (error instanceof ApiError) return error;
  const exit = machineExitOf(error);
  const detail = error instanceof VmmError ? error.message : "";
  const why = exit === null ? detail : endedBefore("the virtual machine ran", exit);
  const which = shape === null ? "" : ` with vcpus ${shape.vcpus} and memory_bytes ${shape.memoryBytes}`;
  const message = `virtual machines${which} cannot be started${why === "" ? "" : `: ${why}`}`;
  return new ApiError("unavailable", message, exit === null ? {} : { reason: exit.reason }, { cause: error });
}

/** True for a failure of a machine or its VMM that no other process caused: another start would likely fail as well. */
export function isOwnFailure(error: unknown): boolean {
  return error instanceof VmmError && signalKindOf(error) !== "signal";
}

/**
 * Translates an error of work in a machine for callers. An ApiError stays as it is, and so does an unknown error unless
 * the machine has ended.
 */
export async function explain(error: unknown, machine: Machine): Promise<unknown> {
  if (error instanceof ApiError || error instanceof AgentRefusedError) return error;
  if (error instanceof AgentClosedError) {
    const exit = await withinTime(machine.exited, EXIT_MS_MAX, () => null);
    if (exit !== null) return endedEarly(exit, error);
    return new MachineLostError(null, "the virtual machine ended early: its agent closed the connection", error);
  }
  if (error instanceof AgentProtocolError) {
    return new ApiError("unavailable", `the guest agent broke its protocol: ${error.message}`, {}, { cause: error });
  }
  if (error instanceof AgentError) return agentFailure(error);
  if (error instanceof LayerIndexError) {
    return new ApiError("unavailable", `the guest's file listing was refused: ${error.message}`, {}, { cause: error });
  }
  // Calls to a monitor that has exited fail in many ways; its exit is the better explanation.
  const exit = await withinTime(machine.exited, EXIT_AFTER_OTHER_MS_MAX, () => null);
  if (exit !== null) return endedEarly(exit, error);
  if (!(error instanceof VmmError)) return error;
  return new MachineLostError(null, `the virtual machine monitor failed: ${error.message}`, error);
}
