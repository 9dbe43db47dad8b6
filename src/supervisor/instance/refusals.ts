import { constants } from "node:os";
import { ApiError } from "../../domain/errors.ts";
import { withinTime } from "../../system/waiting.ts";
import { AgentError, type AgentRefusedError, type ExecHandle } from "../../vm/agent/agent.ts";
import { Refusal } from "../../vm/agent/protocol.ts";

/** Errors of a start in namespaces whose first process is dying; the last one can have other reasons. */
const ENDING_ERRNOS: ReadonlySet<number> = new Set([
  constants.errno.ESRCH,
  constants.errno.ECHILD,
  constants.errno.ENOMEM,
]);
/** The end of the command is reported within this time after such an error. */
const ENDING_MS_MAX = 2000;

/** The error of a request that needs the command of an instance. */
export class NotRunningError extends ApiError {
  constructor() {
    super("conflict", "the command of the instance is not running");
  }
}

/** A new `NotRunningError`. */
export function notRunning(): NotRunningError {
  return new NotRunningError();
}

/** The error of a request for an instance that runs on after a restart of the service, which is opening its machine. */
export function beingAdopted(): ApiError {
  const message = "the instance runs, and the service, which was restarted, is opening its machine";
  return new ApiError("unavailable", message, { reason: "adopting", retry_after_seconds: 1 });
}

/** Determines whether a start in the namespaces of `command` failed with `error` because the command was ending. */
export async function isEnding(command: ExecHandle, error: unknown): Promise<boolean> {
  if (!(error instanceof AgentError) || !ENDING_ERRNOS.has(error.errno)) return false;
  const ended = command.exit.then(() => true);
  return await withinTime(ended, ENDING_MS_MAX, () => false);
}

/** The caller's error for a port that did not accept a connection. */
export function refusalOf(port: number, { reason }: AgentRefusedError): ApiError {
  const name = REFUSALS[reason] ?? "unreachable";
  return new ApiError("conflict", `port ${port} of the instance did not accept a connection: ${name}`, {
    port,
    reason: name,
  });
}

const REFUSALS: Readonly<Record<number, string>> = { [Refusal.refused]: "refused", [Refusal.timedOut]: "timed_out" };

/** The caller's error when the guest has no room for another of a kind; any other error as it is. */
export function tooManyOf(kind: "processes" | "connections" | "waiting signals", error: unknown): unknown {
  if (!(error instanceof AgentError) || error.errno !== constants.errno.EAGAIN) return error;
  const message = `the instance cannot have more ${kind}`;
  return new ApiError("too_many_requests", message, { retry_after_seconds: 1 }, { cause: error });
}
