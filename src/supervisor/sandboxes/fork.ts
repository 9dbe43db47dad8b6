import type { Database } from "../../db/database.ts";
import { getOperation } from "../../db/operations.ts";
import { requireFreeName, type SandboxRow, sandboxNamed } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, ImageId, SandboxId } from "../../domain/ids.ts";
import { CHECKPOINT_TIMEOUT_SECONDS_DEFAULT } from "../../domain/instance.ts";
import { isTerminal } from "../../domain/operation.ts";
import { forkNames, type SandboxSubmission, sandboxConflict } from "../../domain/sandbox.ts";
import type { Operations } from "../operations/operations.ts";
import { type Scheduler, sandboxCostOf } from "../operations/scheduler.ts";
import type { SandboxesPort, SandboxFork } from "./ports.ts";

const SECOND_MS = 1000;
/** One wait for the checkpoint; it is repeated. */
const WAIT_MS = 60_000;

export interface ForkTools {
  readonly db: Database;
  readonly operations: Pick<Operations, "waitForEnd">;
  readonly scheduler: Pick<Scheduler, "fitsEver">;
  readonly sandboxes: Pick<SandboxesPort, "checkpoint" | "create" | "end"> & {
    requireRoom(accountId: AccountId, count: number): void;
  };
}

/** As `SandboxesPort.fork`. */
export async function fork(
  tools: ForkTools,
  row: SandboxRow,
  { count, names: requested }: SandboxFork,
  signal: AbortSignal,
): Promise<readonly SandboxId[]> {
  const { accountId } = row;
  requireStill(row);
  requireBudget(tools, row, count);
  tools.sandboxes.requireRoom(accountId, count);
  const names = namesOf(tools, row, { count, names: requested });
  const imageId = await presentImage(tools, row, signal);
  const children: SandboxId[] = [];
  try {
    for (const name of names) {
      const { id } = await tools.sandboxes.create(accountId, copyOf(row, imageId, name), { parentId: row.id });
      children.push(id);
    }
  } catch (error) {
    const ends = children.map((id) => tools.sandboxes.end(accountId, id, { keep: false }));
    // Expected: a client has ended one of them.
    await Promise.allSettled(ends);
    throw error;
  }
  return children;
}

/** The names of the forks of a sandbox. @throws ApiError `conflict` for a name that is in use */
export function namesOf(
  { db }: Pick<ForkTools, "db">,
  { accountId, name }: SandboxRow,
  { count, names: requested }: Pick<SandboxFork, "count" | "names">,
): readonly string[] {
  const isTaken = (candidate: string) => sandboxNamed(db, accountId, candidate) !== null;
  const names = requested ?? forkNames(name, count, isTaken);
  for (const candidate of names) requireFreeName(db, accountId, candidate);
  return names;
}

/** @throws ApiError `unavailable` when the host could never run that many at once */
function requireBudget({ scheduler }: ForkTools, { resources }: SandboxRow, count: number): void {
  const { memoryBytes, vcpus } = sandboxCostOf(resources);
  if (scheduler.fitsEver({ memoryBytes: count * memoryBytes, vcpus: count * vcpus })) return;
  throw new ApiError("unavailable", `the budget of this host has no room for ${count} such sandboxes`, { count });
}

/** @throws ApiError `conflict` when a sandbox has no files of its own yet, or they are being saved, or it has ended */
function requireStill({ state }: SandboxRow): void {
  if (state !== "running" && state !== "paused" && state !== "failed") throw sandboxConflict(state);
}

/** As `SandboxesPort.presentImage`. */
export async function presentImage(
  { db, operations, sandboxes }: Pick<ForkTools, "db" | "operations" | "sandboxes">,
  row: SandboxRow,
  signal: AbortSignal,
): Promise<ImageId> {
  const { id, accountId, state, headId } = row;
  requireStill(row);
  if (state !== "running") {
    if (headId === null) throw sandboxConflict(state);
    return headId;
  }
  const request = { tag: null, timeoutSeconds: CHECKPOINT_TIMEOUT_SECONDS_DEFAULT };
  const operationId = await sandboxes.checkpoint(accountId, id, request);
  for (;;) {
    const operation = getOperation(db, accountId, operationId);
    if (operation?.status === "SUCCESS") return operation.result?.["image"] as ImageId;
    if (operation === null || isTerminal(operation.status)) {
      const { error = "conflict", message = "the checkpoint was cancelled", details = {} } = operation?.error ?? {};
      throw new ApiError(error, message, details);
    }
    await operations.waitForEnd(operationId, WAIT_MS, signal);
    signal.throwIfAborted();
  }
}

/** A request for a sandbox that begins with an image, and otherwise is as another one, without its first process and its ports. */
export function copyOf(row: SandboxRow, imageId: ImageId, name: string): SandboxSubmission {
  const {
    timeoutMs,
    idleTimeoutMs,
    onTimeout,
    autoResume,
    pauseMemory,
    metadata,
    network,
    env,
    cwd,
    user,
    resources,
    boot,
    discardsPauses,
  } = row;
  return {
    ...{
      name,
      imageId,
      onTimeout,
      autoResume,
      pauseMemory,
      metadata,
      network,
      env,
      cwd,
      user,
      resources,
      boot,
      discardsPauses,
    },
    timeoutSeconds: timeoutMs / SECOND_MS,
    idleTimeoutSeconds: idleTimeoutMs === null ? null : idleTimeoutMs / SECOND_MS,
    publicPorts: [],
    files: [],
    start: null,
  };
}
