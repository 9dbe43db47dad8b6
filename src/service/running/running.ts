import { getOperation, type OperationRow } from "../../db/operations.ts";
import { findSandbox, noMachineOf, requireSandbox, type SandboxRow } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId, OperationId, SandboxId } from "../../domain/ids.ts";
import { type LogEvent, type LogEventData, Spid } from "../../domain/log-event.ts";
import { OUTPUT_BYTES_DEFAULT } from "../../domain/output.ts";
import { type SandboxState, sandboxConflict } from "../../domain/sandbox.ts";
import type { CommandInput, TerminalSize } from "../../domain/spawn.ts";
import type { InstanceProcess } from "../../supervisor/instance/instance-process.ts";
import { NotRunningError } from "../../supervisor/instance/refusals.ts";
import type { RunningInstance } from "../../supervisor/instance/running-instance.ts";
import { type LogSource, operationLog } from "../events.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/* Functions that the use cases of what runs share. */

/** Names a sandbox. */
export interface SandboxTarget {
  readonly sandbox: SandboxId;
}

/** Names what runs: an instance, or a sandbox, whose machines come and go. */
export type Target = OperationId | SandboxTarget;

/** The id of a target, for the audit. */
export function idOf(target: Target): string {
  return typeof target === "string" ? target : target.sandbox;
}

/** Names a process: what it runs in, and its number there. */
export interface ProcessName {
  readonly id: Target;
  readonly spid: number;
}

/** The stored facts about a target. */
export interface StoredTarget {
  readonly log: LogSource;
  /** the image on which its processes run; null when it was deleted */
  readonly imageId: ImageId | null;
  /** fields that a command has when its request leaves them out */
  readonly defaults: Pick<CommandInput, "env" | "cwd" | "user">;
  /** limit of each output stream of a process whose request has none, in `bytes`; null: that of the log */
  readonly outputBytes: number | null;
  /** largest time limit of its processes, in `seconds` */
  readonly timeoutSecondsMax: number;
  /** The error for a request that needs its machine while it has none: `unavailable` when that has just ended. */
  refusal(): ApiError;
}

/** A target with its machine. */
export interface LiveTarget extends Disposable {
  /** the facts from before the wait for the machine */
  readonly stored: StoredTarget;
  /** the operation of the machine */
  readonly id: OperationId;
  readonly instance: RunningInstance;
}

/** The target of this name. @throws ApiError `not_found` */
export function storedTarget(
  parts: Pick<ServiceParts, "db" | "limits" | "sandboxes">,
  principal: Principal,
  target: Target,
): StoredTarget {
  const { instanceTimeoutSecondsMax, sandboxTimeoutSecondsMax } = parts.limits;
  if (typeof target !== "string") {
    const row = requireSandbox(parts.db, principal.accountId, target.sandbox);
    const { env, cwd, user, headId } = row;
    const defaults = { env, cwd: cwd ?? undefined, user: user ?? undefined };
    const refusal = () => noMachineOf(parts.db, row.id);
    const log = sandboxLog(parts, row);
    const timeoutSecondsMax = sandboxTimeoutSecondsMax;
    return { log, imageId: headId, defaults, outputBytes: null, timeoutSecondsMax, refusal };
  }
  const row = requireInstance(parts, principal, target);
  const { imageId, status } = row;
  const log = operationLog(parts, principal, row);
  const refusal = () => notRunning(status);
  const timeoutSecondsMax = instanceTimeoutSecondsMax;
  return { log, imageId, defaults: {}, outputBytes: OUTPUT_BYTES_DEFAULT, timeoutSecondsMax, refusal };
}

/** The log of a sandbox, which it has over all its lives. No event follows the last one. */
export function sandboxLog(
  { db, sandboxes }: Pick<ServiceParts, "db" | "sandboxes">,
  { id, state, operationId }: SandboxRow,
): LogSource {
  const hasEnded = (now: SandboxState) => now === "ended" && sandboxes.logged(id) === null;
  return {
    id,
    instance: operationId,
    hasEnded: hasEnded(state),
    isComplete: () => hasEnded(findSandbox(db, id)?.state ?? "ended"),
    last: () => null,
  };
}

export interface LiveOptions {
  /** ends the wait for a machine that starts */
  readonly signal: AbortSignal;
  /** true: a sandbox that was paused is resumed, if its owner wants that */
  readonly resumes: boolean;
}

/**
 * The machine of a target, for use until disposal: a sandbox is not idle until then.
 * @throws ApiError `not_found`; `conflict` when it is not running; `unavailable` when the machine of a sandbox has just ended;
 *   as `SandboxesPort.use` does
 */
export async function liveTarget(
  parts: Pick<ServiceParts, "db" | "limits" | "instances" | "sandboxes">,
  principal: Principal,
  target: Target,
  { signal, resumes }: LiveOptions,
): Promise<LiveTarget> {
  const stored = storedTarget(parts, principal, target);
  if (typeof target === "string") {
    const instance = parts.instances.current(target);
    if (instance === null) throw stored.refusal();
    return { id: target, instance, stored, [Symbol.dispose]: () => undefined };
  }
  using undo = new DisposableStack();
  const { instance: id } = undo.use(
    await parts.sandboxes.use(principal.accountId, target.sandbox, signal, { resumes }),
  );
  const instance = parts.instances.current(id);
  if (instance === null) throw stored.refusal();
  const held = undo.move();
  return { id, instance, stored, [Symbol.dispose]: () => held.dispose() };
}

/**
 * Does `work` with the machine of a target.
 * @throws as `work` does; ApiError `conflict` when another request for the sandbox has ended the machine meanwhile;
 *   `unavailable` when it has just died
 */
export async function onMachine<T>(
  { db }: Pick<ServiceParts, "db">,
  target: Target,
  { id }: Pick<LiveTarget, "id">,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const row = typeof target === "string" ? null : findSandbox(db, target.sandbox);
    // Nothing but a machine that dies ends the command of a sandbox that runs.
    if (row !== null && error instanceof NotRunningError) throw noMachineOf(db, row.id);
    const isOwn = row === null || row.state === "failed" || (row.state === "running" && row.operationId === id);
    if (isOwn || !(error instanceof ApiError) || error.code !== "unavailable") throw error;
    // It was rolled back when another machine runs already.
    throw sandboxConflict(row.state === "running" ? "resuming" : row.state);
  }
}

/**
 * A running process of a target. The command of a sandbox's machine is not one of its processes: it only keeps the machine.
 * @throws ApiError `not_found`, `conflict`
 */
export function requireProcess({ instance }: LiveTarget, { id, spid }: ProcessName): InstanceProcess {
  if (typeof id !== "string" && spid === Spid.command) throw noSuchProcess(spid);
  const process = instance.process(spid);
  if (process !== null) return process;
  if (!instance.hasHad(spid)) throw noSuchProcess(spid);
  throw new ApiError("conflict", spid === Spid.command ? "the command has ended" : "the process has ended", { spid });
}

/** States of a sandbox in which processes that ran before do not run any more, unless their memory is kept. */
const GONE_STATES: ReadonlySet<string> = new Set<SandboxState>(["running", "paused", "failed", "ended"]);

/**
 * True for an event after which earlier processes do not run: the first or last one of a machine, or a state of a sandbox. Their
 * ends come before it, if they are known.
 */
export function endsProcesses(event: LogEvent): boolean {
  if (event.type === "init" || event.type === "shutdown") return true;
  if (event.type !== "state") return false;
  const { to, memory } = dataOf<"state">(event);
  return GONE_STATES.has(to) && memory !== true;
}

export function dataOf<Type extends "spawn" | "exit" | "truncated" | "dropped" | "state">({
  payload,
}: LogEvent): LogEventData[Type] {
  return JSON.parse(Buffer.from(payload).toString("utf8")) as LogEventData[Type];
}

/** The operation of an instance. @throws ApiError `not_found` */
export function requireInstance(
  { db }: Pick<ServiceParts, "db">,
  { accountId }: Principal,
  id: OperationId,
): OperationRow {
  const row = getOperation(db, accountId, id);
  if (row === null || row.kind !== "instance") throw new ApiError("not_found", "no such instance", { uuid: id });
  return row;
}

export function notRunning(status: string): ApiError {
  return new ApiError("conflict", "the instance is not running", { status });
}

/** @throws ApiError `conflict` when the process has no terminal */
export function resizeTerminal(process: InstanceProcess, size: TerminalSize): void {
  if (!process.hasTerminal) throw new ApiError("conflict", "the process has no terminal");
  process.resize(size);
}

export function noSuchProcess(spid: number): ApiError {
  return new ApiError("not_found", "the instance has no such process", { spid });
}
