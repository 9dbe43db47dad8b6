import { ApiError, type ErrorDetails } from "../../domain/errors.ts";
import { LayerIndexError } from "../../storage/index/layer-index-format.ts";
import { withinTime } from "../../system/waiting.ts";
import { AgentClosedError, AgentError, AgentProtocolError } from "../../vm/agent/agent.ts";
import type { Machine, MachineExit } from "../../vm/vmm.ts";
import { endedEarly, explain, MachineLostError } from "../machines/machine-errors.ts";

/** `details.reason` when no end of the machine gives a more precise one. */
const CAPTURE_FAILED = "capture_failed";
/** Bounds the query for the machine's state, which a healthy monitor answers at once. */
const STATE_MS_MAX = 5000;
/** Ends of a machine that its guest can cause. */
const GUEST_REASONS: readonly MachineExit["reason"][] = ["guest_panic", "guest_reset", "guest_shutdown"];

/**
 * A guest failed to deliver the files of its run. A second attempt would fail, too, so this is a conflict and no failure
 * of the service; the command has its result.
 */
export class CaptureError extends ApiError {
  constructor(why: string, details: ErrorDetails, options?: ErrorOptions) {
    super("conflict", `the files of the run could not be captured: ${why}`, details, options);
  }
}

/**
 * Runs `capture` after the command, and attributes a failure to the guest or the host. The command ran as root, so it may cause
 * everything that the guest says or does from then on; it cannot cause a failure of the host, its disk or the monitor.
 * @throws CaptureError when the guest is the cause; otherwise the error of `capture`
 */
export async function captureOrBlame<T>(machine: Machine, capture: () => Promise<T>): Promise<T> {
  try {
    return await capture();
  } catch (error) {
    throw await blame(error, machine);
  }
}

/** The error to throw for a failed capture. */
async function blame(error: unknown, machine: Machine): Promise<unknown> {
  const isAnswer =
    error instanceof AgentError || error instanceof AgentProtocolError || error instanceof LayerIndexError;
  if (!isAnswer && !(error instanceof AgentClosedError) && !(error instanceof MachineLostError)) return error;
  const failure = isAnswer ? await withinTime(machine.failure(), STATE_MS_MAX, () => null) : null;
  const explained = await explain(failure === null ? error : endedEarly(failure, error), machine);
  if (!(explained instanceof ApiError)) return explained;
  const exit = explained instanceof MachineLostError ? explained.exit : null;
  if (exit !== null && !GUEST_REASONS.includes(exit.reason)) return explained;
  return new CaptureError(explained.message, { reason: CAPTURE_FAILED, ...explained.details }, { cause: error });
}
