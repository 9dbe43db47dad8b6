import { ApiError, type ErrorCode } from "../domain/errors.ts";
import type { Isolation } from "../domain/operation.ts";
import { LayerIndexError } from "../storage/layer-index-format.ts";
import { withinTime } from "../system/waiting.ts";
import { type Agent, AgentClosedError, AgentError, AgentProtocolError } from "../vm/agent.ts";
import type { Machine, MachineExit, MachineShape } from "../vm/vmm.ts";

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
  takeAside(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine>;
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

/** Linux error numbers of a guest's report that are the request's doing. */
const ERRNO_CODES: Readonly<Record<number, ErrorCode>> = {
  7: "validation_error", // E2BIG
  17: "invalid_path", // EEXIST
  18: "invalid_path", // EXDEV: in /proc, /sys or /dev, which are no part of the image
  20: "invalid_path", // ENOTDIR
  21: "invalid_path", // EISDIR
  26: "invalid_path", // ETXTBSY
  28: "insufficient_storage", // ENOSPC
  36: "invalid_path", // ENAMETOOLONG
  40: "invalid_path", // ELOOP
};

/**
 * Does `work` in a machine. When `signal` fires the machine is killed, which ends everything that waits
 * for its agent.
 * @throws the reason of `signal`, or an ApiError that names what failed in the guest
 */
export async function inMachine<T>({ machine }: ReadyMachine, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
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
export function endedEarly({ reason, detail }: MachineExit, cause?: unknown): ApiError {
  const code = reason === "disk_full" ? "insufficient_storage" : "unavailable";
  const message = `the virtual machine ended early: ${EXIT_TEXT[reason]}`;
  return new ApiError(code, message, { reason, detail }, { cause });
}

async function explain(error: unknown, machine: Machine): Promise<unknown> {
  if (error instanceof AgentClosedError) {
    const exit = await withinTime(machine.exited, EXIT_MS_MAX, () => null);
    if (exit !== null) return endedEarly(exit, error);
    const text = "the virtual machine ended early: its agent closed the connection";
    return new ApiError("unavailable", text, {}, { cause: error });
  }
  if (error instanceof AgentProtocolError) {
    return new ApiError("unavailable", `the guest agent broke its protocol: ${error.message}`, {}, { cause: error });
  }
  if (error instanceof AgentError) {
    return new ApiError(
      ERRNO_CODES[error.errno] ?? "unavailable",
      error.message,
      { errno: error.errno },
      { cause: error },
    );
  }
  if (error instanceof LayerIndexError) {
    return new ApiError("unavailable", `the guest's file listing was refused: ${error.message}`, {}, { cause: error });
  }
  if (error instanceof ApiError) return error;
  // Calls to the monitor of a machine fail in ways of their own when it is gone.
  const exit = await withinTime(machine.exited, EXIT_AFTER_OTHER_MS_MAX, () => null);
  return exit === null ? error : endedEarly(exit, error);
}
