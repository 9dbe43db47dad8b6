import { join } from "node:path";
import { ApiError, storageFull } from "../../../domain/errors.ts";
import type { OperationId } from "../../../domain/ids.ts";
import { requireSpace } from "../../../storage/free-space.ts";
import type { DataLayout } from "../../../storage/layout.ts";
import { scratchDirectory } from "../../../system/scratch.ts";
import { allocatedBytes } from "../../../system/sparse.ts";
import { VmmError } from "../../../vm/machine-end.ts";
import { syncAgent } from "../../../vm/templates.ts";
import type { ForkPoint, PreparedFork } from "../../../vm/vmm.ts";
import { explain } from "../../machines/machine-errors.ts";
import { notRunning } from "../refusals.ts";
import type { RunningInstance } from "../running-instance.ts";
import type { ResumableInstance, RunningInstances } from "../running-instances.ts";

/** Limit of the wait for the agent's stream to be still, in `milliseconds`; requests to the guest must end before it. */
const HOLD_MS_MAX = 1000;
/**
 * Limit of the preparation, in `milliseconds`. A VMM that its guest has taken over would never be ready, and hold the budget
 * of the copies.
 */
const PREPARE_MS_MAX = 120_000;

/** A running instance at one instant. Disposal removes what it owns; copies that exist may continue. */
export interface TakenFork extends AsyncDisposable {
  readonly point: ForkPoint;
  /** the host's side of the instance at that instant; its `scratchPath` is that of the copy below */
  readonly record: ResumableInstance;
  /** id of the last event of the instance's log before that instant; -1: there is none */
  readonly atEvent: number;
  /** host path of the copy of the scratch, which the owner may move elsewhere on its file system */
  readonly scratchPath: string;
}

export interface ForkTools {
  readonly instances: Pick<RunningInstances, "find" | "record" | "eventsOf">;
  readonly layout: Pick<DataLayout, "root" | "tmp">;
  /** disk space that must be left free */
  readonly diskReserveBytes: number;
}

export interface ForkRequest {
  readonly instanceId: OperationId;
  /** number of copies of the scratch for which there must be disk space */
  readonly copiesCount: number;
  /** "ends": after a success the agent stays held, and the caller has to end the machine */
  readonly after: "continues" | "ends";
  /** abandons the preparation, before anything is paused */
  readonly signal: AbortSignal;
}

/**
 * Takes a fork point of a running instance, which the caller must have claimed. Whatever happens, the instance continues, or
 * fails with the reason.
 * @throws ApiError `conflict` when the command is not running, the VMM cannot fork, or the guest is busy: then nothing was
 *   paused; `insufficient_storage`, `unavailable`; the reason of `signal`
 */
export async function takeForkPoint(tools: ForkTools, request: ForkRequest): Promise<TakenFork> {
  const { instanceId, signal, copiesCount } = request;
  const instance = tools.instances.find(instanceId);
  const scratch = instance?.disks?.scratch?.path;
  if (instance?.isRunning !== true || scratch === undefined) throw notRunning();
  const { layout, diskReserveBytes } = tools;
  requireSpace(layout.root, diskReserveBytes + copiesCount * (await allocatedBytes(scratch).catch(() => 0)));
  await using owned = new AsyncDisposableStack();
  const directory = owned.use(await scratchDirectory(layout.tmp, "fork-"));
  const scratchPath = join(directory.path, "scratch");
  try {
    // It may last for seconds, in which the instance runs.
    await using prepared = await prepare(instance, scratchPath, signal);
    const atInstant = await whileHeld(instance, signal, request.after, async () => {
      const atEvent = (tools.instances.eventsOf(instanceId)?.cut() ?? 0) - 1;
      const record = { ...tools.instances.record(instanceId), scratchPath };
      return { atEvent, record, point: owned.use(await prepared.take()) };
    });
    const kept = owned.move();
    return { ...atInstant, scratchPath, [Symbol.asyncDispose]: () => kept.disposeAsync() };
  } catch (error) {
    throw await asApiError(error, instance, signal);
  }
}

async function prepare({ machine }: RunningInstance, scratchPath: string, signal: AbortSignal): Promise<PreparedFork> {
  if (machine.prepareFork === undefined) throw notSupported();
  const late = AbortSignal.timeout(PREPARE_MS_MAX);
  try {
    return await machine.prepareFork({ scratchPath, signal: AbortSignal.any([signal, late]) });
  } catch (error) {
    if (!late.aborted || signal.aborted) throw error;
    throw new VmmError(`the copies were not ready within ${PREPARE_MS_MAX / 1000} s`, { cause: error });
  }
}

/** The error for a host whose virtual machine monitor cannot fork. */
export function notSupported(): ApiError {
  const details = { reason: "not_supported" };
  return new ApiError("conflict", "the virtual machine monitor of this host cannot copy running machines", details);
}

/** Does `work` during a hold of the agent, which it ends in any case but a success of an instance that ends. */
async function whileHeld<T>(
  instance: RunningInstance,
  signal: AbortSignal,
  after: ForkRequest["after"],
  work: () => Promise<T>,
): Promise<T> {
  const { agent } = instance;
  let isDone = false;
  await using _released = {
    [Symbol.asyncDispose]: async () => {
      if (agent.isHeld && !(isDone && after === "ends")) await release(instance);
    },
  };
  const late = AbortSignal.timeout(HOLD_MS_MAX);
  try {
    await instance.hold(AbortSignal.any([late, signal]));
  } catch (error) {
    if (!late.aborted || signal.aborted) throw error;
    const message = "the instance is busy with requests that must end before it is copied";
    throw new ApiError("conflict", message, { waited_ms: HOLD_MS_MAX }, { cause: error });
  }
  const result = await work();
  isDone = true;
  return result;
}

/** Ends the hold. An instance whose agent does not answer fails: nothing of it can be read any more. Never throws. */
async function release({ agent, failure }: RunningInstance): Promise<void> {
  try {
    await syncAgent(agent);
  } catch (error) {
    const message = `the instance did not continue after a copy: ${(error as Error).message}`;
    failure.abort(new ApiError("unavailable", message, {}, { cause: error }));
  }
}

async function asApiError(error: unknown, instance: RunningInstance, signal: AbortSignal): Promise<unknown> {
  signal.throwIfAborted();
  const full = storageFull(error);
  if (full !== null) return full;
  const explained = await explain(error, instance.machine);
  if (!(error instanceof VmmError) || !instance.isRunning) return explained;
  return new ApiError("unavailable", `the machine was not copied: ${error.message}`, {}, { cause: error });
}
