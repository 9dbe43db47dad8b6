import { askForRunning, OlderDaemonError } from "../../api/operator/control.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import type { RunningOperation, RunningWork } from "../../domain/operator/restart.ts";
import { DataAccessError, type DataLayout, hasData } from "../../storage/layout.ts";
import { CliError } from "../command.ts";

/** The answer of the daemon of a data directory. older: it runs, and is of a version that cannot say. */
export type Running = RunningWork | "none" | "older";

/** Asks the daemon of a data directory. @throws CliError when this user may not */
export async function runningOf(layout: DataLayout): Promise<Running> {
  try {
    if (!hasData(layout)) return "none";
    return (await askForRunning(layout.control)) ?? "none";
  } catch (error) {
    if (error instanceof OlderDaemonError) return "older";
    if (error instanceof DataAccessError) throw new CliError(error.message);
    throw error;
  }
}

/** How a list names an operation. */
export function shownOperation({ id, kind, sandbox, accountId }: RunningOperation): string {
  const name = sandbox === null ? `${KIND_FACTS[kind].label.toLowerCase()} ${id}` : `sandbox ${sandbox}`;
  return `${name} of ${accountId}`;
}

/** A number with its noun and verb. */
export function countedRunning(count: number, noun = "instance"): string {
  return `${counted(count, noun)} ${count === 1 ? "runs" : "run"}`;
}

/** A number with its noun. */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
