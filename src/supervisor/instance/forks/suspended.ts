import { ApiError } from "../../../domain/errors.ts";
import { Spid } from "../../../domain/log-event.ts";
import { SIGKILL_SIGNAL } from "../../../domain/signals.ts";
import type { Indexing, StagedLayer } from "../../../storage/layers/staged-layer.ts";
import { withinTime } from "../../../system/waiting.ts";
import type { AgentExit } from "../../../vm/agent/agent.ts";
import { continueCopy } from "../../../vm/copy-agent.ts";
import { type CaptureTools, captureScratch } from "../capture.ts";
import { captureOrBlame } from "../capture-failure.ts";
import type { ProcessLogRecord, ProcessSink } from "../instance-process.ts";
import type { ProcessLog } from "../process-log.ts";
import type { RunningInstance } from "../running-instance.ts";
import type { ResumableInstance } from "../running-instances.ts";
import { resumeInstance } from "./resume-instance.ts";

/** Limit of the end of all processes, in `milliseconds`. */
const END_MS_MAX = 10_000;

/** A held instance whose machine is paused, and whose memory and scratch were copied at the instant of the record. */
interface SuspendedInstance {
  readonly instance: RunningInstance;
  readonly record: ResumableInstance;
  /** host path of its own scratch */
  readonly scratchPath: string;
  /** host path of the index of the image's top layer */
  readonly parentIndex: string;
  /** on the monotonic clock, in `milliseconds` */
  readonly startedAt: number;
  /** gets the end of the command, so that the next process can capture the files when this one is killed */
  readonly commandLog: ProcessLog;
}

/**
 * Captures the files of an instance whose processes will continue from a copy of it. They run on for the milliseconds until
 * they are killed: no client sees their output or their end, and their connections are reset. The layer gets a UUID of its own,
 * because the scratch of the copy keeps that of this one.
 * @throws as `captureScratch` does; ApiError `unavailable` when the guest does not end the processes
 */
export async function captureSuspended(
  tools: CaptureTools & Indexing,
  { instance, record, scratchPath, parentIndex, startedAt, commandLog }: SuspendedInstance,
): Promise<{ readonly exit: AgentExit; readonly layer: StagedLayer | null }> {
  const { machine, isolation } = instance;
  instance.leave(new ApiError("conflict", "the sandbox was paused with its memory", { state: "pausing" }));
  const { instance: blind, connections } = await resumeInstance(
    { machine, isolation, [Symbol.asyncDispose]: () => Promise.resolve() },
    withoutReaders(record).instance,
    {
      continueAgent: (from, options) => continueCopy(machine, from, { ...options, signal: tools.signal }),
      network: null,
      stored: Promise.resolve(),
      sinkOf: (log) => (log.spid === Spid.command ? commandLog.resume(log.start) : discarded(log)),
      commandInput: () => [],
    },
  );
  for (const connection of connections) connection.reset();
  blind.command.signal(SIGKILL_SIGNAL);
  const exit = await withinTime(blind.command.exit, END_MS_MAX, () => {
    throw new ApiError("unavailable", "the guest did not end the processes of the sandbox in time");
  });
  await withinTime(blind.settled(), END_MS_MAX, () => undefined);
  const run = { disk: scratchPath, parentIndex, ranMs: performance.now() - startedAt, isCopied: true };
  return { exit, layer: await captureOrBlame(machine, () => captureScratch(tools, blind, run)) };
}

/** The record without readers: those of processes attach again, and connections are reset. */
export function withoutReaders({ instance, ...record }: ResumableInstance): ResumableInstance {
  const none = { holds: true, waiting: [], taps: [] };
  const connections = instance.agent.connections.map((one) => ({ ...one, waiting: "" }));
  const processes = instance.processes.map((one) => ({ ...one, taps: none }));
  return { ...record, instance: { ...instance, processes, agent: { ...instance.agent, connections } } };
}

function discarded(log: ProcessLogRecord): ProcessSink {
  return {
    started: () => undefined,
    output: () => undefined,
    onInput: () => undefined,
    bytes: (stream) => log[stream],
    record: () => log,
    exited: () => undefined,
  };
}
