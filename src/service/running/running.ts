import { getOperation, type OperationRow } from "../../db/operations.ts";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { LogEvent, LogEventData } from "../../domain/log-event.ts";
import type { TerminalSize } from "../../domain/spawn.ts";
import type { InstanceProcess } from "../../supervisor/instance/instance-process.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/* Functions that the use cases of instances and of processes share. */

/** Names a process: the id of its instance, and its number within the instance. */
export interface ProcessName {
  readonly id: OperationId;
  readonly spid: number;
}

export function dataOf<Type extends "spawn" | "exit" | "truncated">({ payload }: LogEvent): LogEventData[Type] {
  return JSON.parse(Buffer.from(payload).toString("utf8")) as LogEventData[Type];
}

export function requireInstance({ db }: ServiceParts, { accountId }: Principal, id: OperationId): OperationRow {
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
