import { ApiError, type ErrorDetails } from "../../domain/errors.ts";
import { LayerIndexError } from "../../storage/index/layer-index-format.ts";
import { withinTime } from "../../system/waiting.ts";
import { AgentClosedError, AgentError, AgentProtocolError } from "../../vm/agent/agent.ts";
import type { Machine, MachineExit } from "../../vm/vmm.ts";
import { endedEarly, explain, MachineLostError } from "../machines/machines.ts";

/** `details.reason` where the guest's own end is not the reason. */
const CAPTURE_FAILED = "capture_failed";
/** A monitor answers at once; one that does not has failed in another way. */
const STATE_MS_MAX = 5000;
/** Ends of a machine that its guest brings about. */
const GUEST_REASONS: readonly MachineExit["reason"][] = ["guest_panic", "guest_reset", "guest_shutdown"];

/**
 * A guest did not give the files of its run. Another attempt would not change that: it is no failure of the service, and
 * the command has its result.
 */
export class NotKeptError extends ApiError {
  constructor(why: string, details: ErrorDetails, options?: ErrorOptions) {
    super("conflict", `the files of the run were not kept: ${why}`, details, options);
  }
}

/**
 * Captures what a command left. It ran as root, so whatever the guest says or does from then on may be its doing; what
 * the host, its disk or the monitor did is told as that.
 * @throws NotKeptError where the guest is the cause; else what `capture` throws
 */
export async function fromGuest<T>(machine: Machine, capture: () => Promise<T>): Promise<T> {
  try {
    return await capture();
  } catch (error) {
    throw await blame(error, machine);
  }
}

async function blame(error: unknown, machine: Machine): Promise<unknown> {
  const isAnswer =
    error instanceof AgentError || error instanceof AgentProtocolError || error instanceof LayerIndexError;
  if (!isAnswer && !(error instanceof AgentClosedError) && !(error instanceof MachineLostError)) return error;
  const failure = isAnswer ? await withinTime(machine.failure(), STATE_MS_MAX, () => null) : null;
  const explained = await explain(failure === null ? error : endedEarly(failure, error), machine);
  if (!(explained instanceof ApiError)) return explained;
  const exit = explained instanceof MachineLostError ? explained.exit : null;
  if (exit !== null && !GUEST_REASONS.includes(exit.reason)) return explained;
  return new NotKeptError(explained.message, { reason: CAPTURE_FAILED, ...explained.details }, { cause: error });
}
