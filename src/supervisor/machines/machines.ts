import { ApiError } from "../../domain/errors.ts";
import type { Isolation } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import { LayerIndexError } from "../../storage/index/layer-index-format.ts";
import { withinTime } from "../../system/waiting.ts";
import {
  type Agent,
  AgentClosedError,
  AgentError,
  AgentProtocolError,
  AgentRefusedError,
} from "../../vm/agent/agent.ts";
import { machineExitOf, VmmError } from "../../vm/machine-end.ts";
import type { Machine, MachineExit, MachineShape } from "../../vm/vmm.ts";
import { agentFailure } from "./guest-errors.ts";

/** A machine whose agent answers, has fresh entropy and knows the time. */
export interface ReadyMachine extends AsyncDisposable {
  readonly machine: Machine;
  readonly agent: Agent;
  readonly isolation: Isolation;
}

/** Where machines come from: the pool, once the probe has decided that there may be one. */
export interface MachineSource {
  /** @throws ApiError `unavailable` where no virtual machine monitor may be used; the reason of `signal` */
  take(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine>;
  /** The same, but never one of those that wait for whoever is in a hurry. */
  takeUnpooled(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine>;
  /** Host path of the launcher that jails machines, and tools too. @throws as `take` does */
  launcher(signal: AbortSignal): Promise<string>;
}

/** A VMM that lost its agent is gone in far less; this only bounds the wait for its exit. */
const EXIT_MS_MAX = 5000;
/** The same after a failure that may have nothing to do with the machine. */
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

/** A machine was lost while somebody worked in it. */
export class MachineLostError extends ApiError {
  /** null for a machine whose VMM or agent is no more of use, although it runs */
  readonly exit: MachineExit | null;

  constructor(exit: MachineExit | null, message: string, cause: unknown) {
    const details = exit === null ? {} : { reason: exit.reason, detail: exit.detail };
    super(exit?.reason === "disk_full" ? "insufficient_storage" : "unavailable", message, details, { cause });
    this.exit = exit;
  }
}

/** Ends of which the next machine would die, too, or which were meant. */
const FINAL_REASONS: readonly (MachineExit["reason"] | undefined)[] = ["disk_full", "killed"];

/**
 * Takes a machine and works in it, and does so once more where the machine was lost before its work began.
 * @param attempt throws a MachineLostError only where it may be made again
 * @param goal what has not happened then, such as `the command began`
 * @throws as `attempt`; for a second machine that was lost an ApiError that names its end
 */
export async function withReplacement<T>(
  attempt: () => Promise<T>,
  { goal, log }: { readonly goal: string; readonly log: Log },
): Promise<T> {
  for (let isReplacement = false; ; isReplacement = true) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof MachineLostError)) throw error;
      const isFinal = isReplacement || FINAL_REASONS.includes(error.exit?.reason);
      if (isFinal) throw error.exit === null ? error : lost(error.exit, { goal, cause: error });
      log.warn("a machine was lost before its work began, and is replaced", { error });
    }
  }
}

/**
 * Does `work` in a machine. When `signal` fires the machine is killed, which ends everything that waits
 * for its agent.
 * @throws the reason of `signal`, or an ApiError that names what failed in the guest
 */
export async function inMachine<T>(
  { machine }: Pick<ReadyMachine, "machine">,
  signal: AbortSignal,
  work: () => Promise<T>,
): Promise<T> {
  signal.throwIfAborted();
  // A kill that fails shows as work that never ends, which the deadlines of the work bound.
  const onAbort = () => void machine.kill().catch(() => undefined);
  signal.addEventListener("abort", onAbort, { once: true });
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
  try {
    return await work();
  } catch (error) {
    signal.throwIfAborted();
    throw await explain(error, machine);
  }
}

/** What a caller may know of a machine that ended before its work. */
export function endedEarly(exit: MachineExit, cause?: unknown): MachineLostError {
  return lost(exit, { cause });
}

function lost(exit: MachineExit, { goal, cause }: { goal?: string; cause: unknown }): MachineLostError {
  if (goal !== undefined) return new MachineLostError(exit, endedBefore(goal, exit), cause);
  const message = `the virtual machine ended early: ${EXIT_TEXT[exit.reason]}${monitorOf(exit)}`;
  return new MachineLostError(exit, message, cause);
}

function endedBefore(goal: string, exit: MachineExit): string {
  if (exit.reason === "vmm_died") return `the virtual machine monitor ended before ${goal}${monitorOf(exit)}`;
  return `the virtual machine ended before ${goal}: ${EXIT_TEXT[exit.reason]}`;
}

function monitorOf({ monitor }: MachineExit): string {
  return monitor === undefined ? "" : ` (${monitor})`;
}

/** What a caller may know of a machine that could not be had. What fails in other words may hold paths of the host. */
export function startFailure(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  const exit = machineExitOf(error);
  const detail = error instanceof VmmError ? error.message : "";
  const why = exit === null ? detail : endedBefore("the virtual machine ran", exit);
  const message = `virtual machines cannot be started${why === "" ? "" : `: ${why}`}`;
  return new ApiError("unavailable", message, exit === null ? {} : { reason: exit.reason }, { cause: error });
}

/** What a caller may know of an error of something that was done in a machine; an ApiError stays what it is. */
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
  // Calls to the monitor of a machine fail in ways of their own when it is gone.
  const exit = await withinTime(machine.exited, EXIT_AFTER_OTHER_MS_MAX, () => null);
  if (exit !== null) return endedEarly(exit, error);
  if (!(error instanceof VmmError)) return error;
  return new MachineLostError(null, `the virtual machine monitor failed: ${error.message}`, error);
}
