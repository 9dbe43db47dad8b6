import { getOperation } from "../../db/operations.ts";
import { requireSandbox, type SandboxRow } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { SandboxId } from "../../domain/ids.ts";
import { type SandboxState, sandboxConflict } from "../../domain/sandbox.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { processUseCases } from "../running/processes.ts";
import type { E2bRecord } from "./records.ts";

/**
 * Clients send a refused request three more times, and give up a minute after the first one, in `milliseconds`. So one for
 * which the host has no room is refused early, and one whose machine starts is answered before the minute ends.
 */
const WAITING_MS_MAX = 10_000;
const STARTING_MS_MAX = 40_000;
/** Longest time until the template's program says that the sandbox is ready, in `milliseconds`. */
const READY_MS_MAX = 600_000;
const RETRY_MS_MIN = 200;
const RETRY_MS_MAX = 2000;
const NEVER = new AbortController().signal;
const isStarting = (state: SandboxState): boolean => state === "starting" || state === "resuming";

/**
 * Waits until a sandbox that starts or resumes runs. It is not bound to a request: a sandbox whose client leaves gets its
 * deadline, or its end, when it runs.
 * @throws ApiError `too_many_requests` when the host has had no room for so long; the error of a failed start; `conflict`
 *   when another request has ended or paused it
 */
export async function runs(
  { db, sandboxes }: Pick<ServiceParts, "db" | "sandboxes">,
  { accountId }: Principal,
  id: SandboxId,
): Promise<SandboxRow> {
  const hasStarted = (state: SandboxState) => !isStarting(state);
  await sandboxes.settled(id, hasStarted, WAITING_MS_MAX, NEVER);
  const { operationId } = requireSandbox(db, accountId, id);
  const hasRoom = operationId !== null && getOperation(db, accountId, operationId)?.status !== "PENDING";
  if (hasRoom) await sandboxes.settled(id, hasStarted, STARTING_MS_MAX, NEVER);
  const row = requireSandbox(db, accountId, id);
  const { state, error } = row;
  if (state === "running") return row;
  if (isStarting(state)) throw new ApiError("too_many_requests", "the host has no room for the sandbox now");
  if (state === "failed" && error !== null) throw new ApiError(error.error, error.message, error.details);
  throw sandboxConflict(state);
}

/**
 * Waits until the program of the template says that the sandbox is ready.
 * @throws ApiError `validation_error` when it does not in time; `conflict` when the sandbox stops running; the reason of `signal`
 */
export async function becomeReady(
  parts: ServiceParts,
  principal: Principal,
  { sandboxId, readiness }: Pick<E2bRecord, "sandboxId" | "readiness">,
  signal: AbortSignal,
): Promise<void> {
  if (readiness === null) return;
  const { command, user, cwd } = readiness;
  const processes = processUseCases(parts);
  const endMs = performance.now() + READY_MS_MAX;
  const request = {
    command,
    shell: true,
    inherit: true,
    lingers: true,
    user: user ?? undefined,
    cwd: cwd ?? undefined,
  };
  for (let pauseMs = RETRY_MS_MIN; ; pauseMs = Math.min(RETRY_MS_MAX, 2 * pauseMs)) {
    const leftMs = Math.ceil(endMs - performance.now());
    signal.throwIfAborted();
    if (leftMs <= 0) throw notReady(command);
    const timeoutSeconds = Math.ceil(leftMs / 1000);
    const { exit } = await processes.start(principal, { sandbox: sandboxId }, { ...request, timeoutSeconds }, signal);
    if ((await exit).exitCode === 0) return;
    await Bun.sleep(pauseMs);
  }
}

function notReady(command: string): ApiError {
  return new ApiError("validation_error", `the sandbox is not ready after 10 minutes: ${command}`);
}
