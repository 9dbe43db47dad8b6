import { getOperation } from "../../db/operations.ts";
import { requireSandbox, type SandboxRow } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { SandboxId } from "../../domain/ids.ts";
import { type SandboxState, sandboxConflict } from "../../domain/sandbox.ts";
import { loginCommand } from "../../domain/templates/scripts.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { processUseCases } from "../running/processes.ts";
import type { E2bRecord } from "./records.ts";

/**
 * Clients give up a minute after a request, and some do not repeat one that was refused. So one for which the host has no room
 * waits its turn for a part of that minute, and one whose machine starts late is answered before it ends, in `milliseconds`.
 */
export const ROOM_MS_MAX = 45_000;
const START_MS_MAX = 10_000;
/** The rest of that minute, in `seconds`: a client that repeats refused requests does not begin a wait that it gives up. */
const RETRY_SECONDS = 15;
/** Longest time until the template's program says that the sandbox is ready, in `milliseconds`. */
const READY_MS_MAX = 600_000;
const RETRY_MS_MIN = 200;
const RETRY_MS_MAX = 2000;
const isStarting = (state: SandboxState): boolean => state === "starting" || state === "resuming";

/**
 * Waits until a sandbox that starts or resumes runs.
 * @throws ApiError `too_many_requests` when the host has no room in time; the error of a failed start; `conflict` when another
 *   request has ended, paused or cancelled it; the reason of `signal`
 */
export async function runs(
  { db, sandboxes, limits }: Pick<ServiceParts, "db" | "sandboxes" | "limits">,
  { accountId }: Pick<Principal, "accountId">,
  id: SandboxId,
  signal: AbortSignal,
): Promise<SandboxRow> {
  const hasStarted = (state: SandboxState) => !isStarting(state);
  await sandboxes.settled(id, hasStarted, limits.roomMsMax, signal);
  const { operationId } = requireSandbox(db, accountId, id);
  const hasRoom = operationId !== null && getOperation(db, accountId, operationId)?.status !== "PENDING";
  if (hasRoom) await sandboxes.settled(id, hasStarted, START_MS_MAX, signal);
  const row = requireSandbox(db, accountId, id);
  const { state, error } = row;
  if (state === "running") return row;
  signal.throwIfAborted();
  if (isStarting(state)) {
    const details = { retry_after_seconds: RETRY_SECONDS };
    throw new ApiError("too_many_requests", "the host has no room for the sandbox now", details);
  }
  if (error !== null) throw new ApiError(error.error, error.message, error.details);
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
  const request = { ...loginCommand(command), user: user ?? undefined, cwd: cwd ?? undefined };
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
