import { ApiError } from "../../domain/errors.ts";
import { Spid } from "../../domain/log-event.ts";
import { isTerminal, type StoredInstanceResult } from "../../domain/operation.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import type { Operation } from "../../service/operations.ts";
import type { Principal } from "../../service/parts.ts";
import type { Outputs } from "../../service/running/outputs.ts";
import type { ProcessDetails, ProcessUseCases } from "../../service/running/processes.ts";
import type { Service } from "../../service/service.ts";
import type { SentOutputs } from "../output/sent-outputs.ts";
import { durationMs } from "./operation-wire.ts";
import { exitOfResult, resourcesOf, stateOf } from "./process-wire.ts";
import { type SentStream, sentStream, streamOf } from "./streams.ts";

/** The result of a process, on the wire. */
export interface SentResult {
  readonly stdout: SentStream;
  readonly stderr: SentStream;
  readonly state: ReturnType<typeof stateOf>;
  readonly resources: ReturnType<typeof resourcesOf>;
}

/** The caller, and the instance of its request. */
interface Asked {
  readonly principal: Principal;
  readonly signal: AbortSignal;
  /** also the output of an instance that has not ended */
  readonly inflight: boolean;
}

const NO_OUTPUT = streamOf(new Uint8Array(), false);

/** The result of a process, or its output so far. `outputs` holds the open outputs until the reply is sent. */
export async function processResult(
  outputs: SentOutputs,
  opened: Outputs,
  { outputs: found, spawn, exit }: Pick<ProcessDetails, "outputs" | "spawn" | "exit">,
): Promise<SentResult> {
  return {
    ...(await streams(outputs, opened, (stream) => found[stream].truncated)),
    state: stateOf(spawn.pid, exit),
    resources: resourcesOf(exit),
  };
}

/**
 * The result of the command of an operation; null before the end, unless the output so far is requested. `outputs` holds the
 * open outputs until the reply is sent.
 * @throws ApiError as `Accounts.wait` does
 */
export async function instanceResult(
  { operations, processes }: Service,
  operation: Operation,
  { principal, signal, inflight }: Asked,
  outputs: SentOutputs,
): Promise<SentResult | null> {
  const hasEnded = isTerminal(operation.status);
  if (!hasEnded && !inflight) return null;
  // A checkpoint has no command.
  const isRun = operation.kind === "instance";
  const stored = isRun ? (operation.result as StoredInstanceResult | null) : null;
  const storedExit = stored === null ? null : exitOfResult(stored, durationMs(operation, 0));
  const command = isRun ? await commandOf(processes, principal, operation, signal) : null;
  if (command !== null) {
    const opened = outputs.hold(await processes.outputs(principal, operation.id, command, signal));
    // After a power failure a log may have lost its last events.
    return await processResult(outputs, opened, { ...command, exit: command.exit ?? storedExit });
  }
  if (!hasEnded) return null;
  const ended = { state: stateOf(0, storedExit), resources: resourcesOf(storedExit) };
  if (stored === null) return { stdout: NO_OUTPUT, stderr: NO_OUTPUT, ...ended };
  const opened = outputs.hold(await operations.outputs(principal, operation, signal));
  return { ...(await streams(outputs, opened, (stream) => stored[stream].truncated)), ...ended };
}

/** The command of an instance according to its log; null when it has not started. */
async function commandOf(
  processes: ProcessUseCases,
  principal: Principal,
  { id }: Operation,
  signal: AbortSignal,
): Promise<ProcessDetails | null> {
  try {
    return await processes.get(principal, { id, spid: Spid.command }, signal);
  } catch (error) {
    if (error instanceof ApiError && error.code === "not_found") return null;
    throw error;
  }
}

async function streams(
  outputs: SentOutputs,
  opened: Outputs,
  isTruncated: (stream: OutputStream) => boolean,
): Promise<Record<OutputStream, SentStream>> {
  const sent: [OutputStream, SentStream][] = [];
  for (const stream of OUTPUT_STREAMS) {
    sent.push([stream, await sentStream(outputs, await opened.read(stream), isTruncated(stream))]);
  }
  return Object.fromEntries(sent) as Record<OutputStream, SentStream>;
}
