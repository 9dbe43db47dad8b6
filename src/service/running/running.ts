import { getOperation, type OperationRow } from "../../db/operations.ts";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId, OperationId } from "../../domain/ids.ts";
import type { LogEvent, LogEventData } from "../../domain/log-event.ts";
import type { TerminalSize } from "../../domain/spawn.ts";
import type { InstanceProcess } from "../../supervisor/instance/instance-process.ts";
import type { RunningInstance } from "../../supervisor/instance/running-instance.ts";
import { type LogSource, operationLog } from "../events.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/* Functions that the use cases of what runs share. */

/** Names what runs: an instance, by its id. */
export type Target = OperationId;

/** Names a process: what it runs in, and its number there. */
export interface ProcessName {
  readonly id: Target;
  readonly spid: number;
}

/** The stored facts about a target. */
export interface StoredTarget {
  readonly log: LogSource;
  /** the image from which that machine started; null when it was deleted */
  readonly imageId: ImageId | null;
  /** of the operation */
  readonly status: string;
}

/** A target with its machine. */
export interface LiveTarget extends Disposable {
  /** the operation of the machine */
  readonly id: OperationId;
  readonly instance: RunningInstance;
}

/** The target of this name. @throws ApiError `not_found` */
export function storedTarget(parts: Pick<ServiceParts, "db">, principal: Principal, target: Target): StoredTarget {
  const row = requireInstance(parts, principal, target);
  return { log: operationLog(parts, principal, row), imageId: row.imageId, status: row.status };
}

/**
 * The machine of a target, for use until disposal.
 * @throws ApiError `not_found`; `conflict` when it is not running
 */
export async function liveTarget(
  parts: Pick<ServiceParts, "db" | "instances">,
  principal: Principal,
  target: Target,
): Promise<LiveTarget> {
  const { status } = requireInstance(parts, principal, target);
  const instance = parts.instances.find(target);
  if (instance === null) throw notRunning(status);
  return { id: target, instance, [Symbol.dispose]: () => undefined };
}

export function dataOf<Type extends "spawn" | "exit" | "truncated" | "dropped">({
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
