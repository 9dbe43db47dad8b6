import type { Isolation } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import type { Agent } from "../../vm/agent/agent.ts";
import type { Disk, ForkPoint, Machine, MachineExit, MachineShape } from "../../vm/vmm.ts";
import { explain, lostBefore, MachineLostError } from "./machine-errors.ts";

/** A machine whose agent answers, has fresh entropy and knows the time. Disposal kills the machine. */
export interface ReadyMachine extends AsyncDisposable {
  readonly machine: Machine;
  readonly agent: Agent;
  readonly isolation: Isolation;
}

/** Gives machines to runs, imports and merges. */
export interface MachineSource {
  /** @throws ApiError `unavailable` when no virtual machine monitor can be used; the reason of `signal` */
  take(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine>;
  /** As `take`, but leaves the machines that wait in the pool to callers that are in a hurry. */
  takeUnpooled(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine>;
  /** Host path of the launcher, which jails machines and tools. @throws as `take` does */
  launcher(signal: AbortSignal): Promise<string>;
}

/** Keeps machines with their memory, and makes copies of them. Its VMM may be unable to do so. */
export interface ForkedMachines {
  /**
   * A copy of a forked machine, which runs no instruction before `Machine.resume`. Disposal kills it.
   * @param disks those of the forked machine; the file of the writable one becomes that of the copy
   * @throws ApiError `unavailable` when it cannot be made; the reason of `signal`
   */
  cloneFork(point: ForkPoint, disks: readonly Disk[], signal: AbortSignal): Promise<Omit<ReadyMachine, "agent">>;
  /**
   * Reads a fork point that `ForkPoint.save` wrote. Its memory is to be counted by the caller.
   * @throws NotResumableError when it cannot be continued on this host; ApiError `unavailable`; the reason of `signal`
   */
  loadFork(directory: string, signal: AbortSignal): Promise<ForkPoint>;
  /** Checks what can be checked without reading the memory. @throws as `loadFork` does */
  checkFork(directory: string, signal: AbortSignal): Promise<void>;
  /** Compresses the memory of such a fork point. @throws as `loadFork` does; nothing has changed then */
  compressFork(directory: string, signal: AbortSignal): Promise<void>;
}

/** Ends after which a replacement is useless, because it would end in the same way, or unwanted. */
const FINAL_REASONS: readonly (MachineExit["reason"] | undefined)[] = ["disk_full", "killed"];

/**
 * Runs `attempt`, and runs it once more when the machine was lost before its work began.
 * @param attempt must throw a MachineLostError only when it may be repeated
 * @param goal the step that a lost machine did not reach, such as `the command began`
 * @throws as `attempt` does; when the second machine is lost, too, an ApiError that names its end
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
      if (isFinal) throw error.exit === null ? error : lostBefore(goal, error.exit, error);
      log.warn("a machine was lost before its work began, and is replaced", { error });
    }
  }
}

/**
 * Does `work` in a machine. When `signal` fires, the machine is killed, which ends every wait for its agent.
 * @throws the reason of `signal`, or an ApiError that names the failure in the guest
 */
export async function inMachine<T>(
  { machine }: Pick<ReadyMachine, "machine">,
  signal: AbortSignal,
  work: () => Promise<T>,
): Promise<T> {
  signal.throwIfAborted();
  // When the kill fails, the work does not end before its own deadlines.
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
