import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import { type LogEventData, type ShutdownReason, Spid } from "../../domain/log-event.ts";
import type { Isolation } from "../../domain/operation.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";
import type { Indexing, StagedLayer } from "../../storage/layers/staged-layer.ts";
import { withinTime } from "../../system/waiting.ts";
import type { AgentConnection, AgentExit } from "../../vm/agent/agent.ts";
import { CAPTURE_MS } from "../machines/guest-budgets.ts";
import { inMachine, type ReadyMachine, withReplacement } from "../machines/machine-source.ts";
import { captureScratch } from "./capture.ts";
import { CaptureError, captureOrBlame } from "./capture-failure.ts";
import { resumeInstance } from "./forks/resume-instance.ts";
import { captureSuspended } from "./forks/suspended.ts";
import type { ResumeOptions } from "./instance-process.ts";
import { ProcessLog } from "./process-log.ts";
import { RunningInstance } from "./running-instance.ts";
import type { InstanceHandle, ResumableInstance, StartedInstance } from "./running-instances.ts";
import {
  hostnameOf,
  type InstanceJob,
  type InstanceTools,
  keptFacts,
  type LoggedJob,
  start,
} from "./start-instance.ts";
import { TimeLimit } from "./time-limit.ts";

/** The agent enforces the time limit. The host waits this much longer for the agent's report. */
const EXIT_GRACE_MS = 5000;
/** The part of EXIT_GRACE_MS in which slow readers can still read the rest of the output. */
const READERS_MS_MAX = 2000;
const SIGKILL_EXIT_CODE = 137;
/** Time for connections to send the rest of their bytes after their programs have ended. */
const DRAIN_MS_MAX = 1000;

/** Outcome of an instance. */
export interface InstanceOutcome {
  readonly exitCode: number;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  readonly isolation: Isolation;
  readonly cpuTimeMs: number;
  readonly memoryBytes: number;
  /** sizes only; the bytes are in the event log */
  readonly stdout: StreamBytes;
  readonly stderr: StreamBytes;
  /** the changed files; null when nothing changed, or nothing was captured */
  readonly layer: StagedLayer | null;
  /** false for a disposable instance, and for one whose machine was killed before its files could be read */
  readonly captured: boolean;
}

/**
 * Runs the command of an instance in a machine of its own. A machine that ends before the command began is replaced
 * once. The machine is gone when this returns or throws.
 * @throws ApiError that names the cause when the guest or the host failed; the reason of `signal`
 */
export async function execute(tools: InstanceTools, job: InstanceJob, signal: AbortSignal): Promise<InstanceOutcome> {
  const { instances, log } = tools;
  const limit = limitOf(job);
  const events = job.idle?.processEvents ?? tools.events;
  const { network, keeper } = tools;
  const parts = { limit, hostname: hostnameOf(job), events, network, image: job.image, keeper };
  using run = instances.open(job.operationId, parts);
  const { truncateOutputAtBytes } = job.submission;
  const commandLog = new ProcessLog(tools.events, { spid: Spid.command, truncateOutputAtBytes });
  const attempt = () => executeOnce(tools, { ...job, commandLog }, run, signal);
  return await withReplacement(attempt, { goal: "the command began", log });
}

/** An instance that an earlier object started, and the host's side to continue it with. */
export interface ResumedInstance {
  readonly record: ResumableInstance;
  /** the machine of the record, or a copy of it */
  readonly machine: Omit<ReadyMachine, "agent">;
  /** as in `ResumeOptions` */
  readonly continueAgent: ResumeOptions["continueAgent"];
  /** hostname of the guest; absent: that of the job */
  readonly hostname?: string;
  /** as in `InstanceParts`; default: that of the record */
  readonly generation?: number;
  /**
   * When the machine can outlive this process. "at_once": before it runs, as its former memory is gone then. "when_started": only
   * when the instance counts as started.
   */
  readonly outlives: "at_once" | "when_started";
  /**
   * Receives the open connections of the record. It must reset those that it does not use. The instance counts as started when
   * its promise, which must not reject, has resolved.
   */
  readonly onResumed: (instance: RunningInstance, connections: readonly AgentConnection[]) => void | Promise<void>;
}

/**
 * Continues an instance whose command has started. The machine is gone when this returns or throws.
 * @throws as `execute` does
 */
export async function resume(
  tools: InstanceTools,
  job: InstanceJob,
  { record, machine, continueAgent, onResumed, outlives, ...guest }: ResumedInstance,
  signal: AbortSignal,
): Promise<InstanceOutcome> {
  const { instances, network, keeper } = tools;
  const events = job.idle?.processEvents ?? tools.events;
  await using undo = new AsyncDisposableStack();
  undo.use(machine);
  const logged = record.instance.processes.find(({ spid }) => spid === Spid.command)?.log;
  if (logged === undefined) throw new Error("an instance without its command");
  const commandLog = new ProcessLog(tools.events, logged, logged);
  const options: ResumeOptions = {
    continueAgent,
    numbers: job.idle?.numbers,
    network: network.policy === null ? null : network,
    stored: events.written(),
    sinkOf: (log) => (log.spid === Spid.command ? commandLog : new ProcessLog(events, log, log)).resume(log.start),
    commandInput: (from) => commandLog.counting(withoutFirst(job.submission.stdin?.() ?? [], from), from),
  };
  const { hostname = hostnameOf(job), generation = record.generation ?? 0 } = guest;
  const limit = TimeLimit.resume(record.limit);
  const { isolation } = machine;
  const facts = { limit, isolation, network, hostname, generation, resumed: outlives === "at_once" };
  const keep = () => keeper?.keep(machine.machine, () => keptFacts(job, facts));
  tools.events.append(Spid.agent, "init", initData(job, machine, hostname));
  const resumed = async () => {
    if (outlives === "at_once") {
      // The next process continues no operation whose log has nothing.
      await tools.events.written();
      await keep();
    }
    return await resumeInstance(machine, record.instance, options);
  };
  const { instance, connections } = await inMachine(machine, signal, resumed);
  await using _instance = instance;
  undo.move();
  using run = instances.open(job.operationId, {
    ...{ limit, hostname, events, network, image: job.image, generation },
    ...given({ keeper }),
  });
  const { scratchPath } = record;
  const startedAt = performance.now() - record.ranMs;
  tools.diskUse.add(scratchPath);
  const begun = onResumed(instance, connections);
  const begin = async (): Promise<StartedInstance> => {
    await begun;
    if (outlives === "when_started") await keep();
    return { scratchPath, startedAt };
  };
  return await inInstance(instance, tools, { job: { ...job, commandLog }, run, begin }, signal);
}

/** @throws MachineLostError only when the command has not begun; otherwise as `execute` does */
async function executeOnce(
  tools: InstanceTools,
  job: LoggedJob,
  run: InstanceHandle,
  signal: AbortSignal,
): Promise<InstanceOutcome> {
  const { resources } = job.submission;
  await using instance = await RunningInstance.take(tools.machines, resources, signal, job.idle?.numbers);
  tools.laps.lap("clone");
  tools.events.append(Spid.agent, "init", initData(job, instance));
  const begin = () => start(instance, tools, job, run.parts.limit);
  return await inInstance(instance, tools, { job, run, begin }, signal);
}

export interface Work {
  readonly job: LoggedJob;
  readonly run: InstanceHandle;
  /** Starts the command, or resumes an instance whose command has started. */
  readonly begin: () => Promise<StartedInstance>;
}

/** Runs the command to its end, captures its changes, and logs the end of the machine. */
export async function inInstance(
  instance: RunningInstance,
  tools: InstanceTools,
  { job, run, begin }: Work,
  signal: AbortSignal,
): Promise<InstanceOutcome> {
  const { events } = tools;
  using _entered = run.enter(instance);
  using _reported = { [Symbol.dispose]: () => tools.uninvited(instance.agent.uninvitedCount) };
  const progress: Progress = { ended: null };
  try {
    const bounded = AbortSignal.any([signal, instance.failure.signal]);
    const outcome = await inMachine(instance, bounded, async () => {
      const started = await begin();
      run.started = started;
      job.idle?.onStarted();
      return await finish(instance, { ...tools, signal }, job, { ...started, limit: run.parts.limit, progress });
    });
    // The last events of the network come before the end of the log.
    await tools.network[Symbol.asyncDispose]();
    events.append(Spid.agent, "shutdown", shutdownData(outcome.timedOut ? "timeout" : "job_complete"));
    // The log is written while the machine is killed. The caller awaits both.
    void events.end();
    return outcome;
  } catch (error) {
    const reason = signal.aborted ? "signal" : instance.hasBegun ? "failed" : "spawn_failed";
    events.append(Spid.agent, "shutdown", shutdownData(reason));
    throw instance.hasBegun ? await withFigures(error, progress, instance) : error;
  }
}

/** The chunks without the first `bytes`. */
export async function* withoutFirst(source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>, bytes: number) {
  let leftBytes = bytes;
  for await (const chunk of source) {
    const rest = chunk.subarray(leftBytes);
    leftBytes -= chunk.byteLength - rest.byteLength;
    if (rest.byteLength > 0) yield rest;
  }
}

/** The data of the first event of an instance with a machine. */
function initData(
  job: InstanceJob,
  { isolation }: Pick<ReadyMachine, "isolation">,
  hostname = hostnameOf(job),
): LogEventData["init"] {
  const { vcpus, memoryBytes } = job.submission.resources;
  const started_at = new Date().toISOString();
  return { started_at, isolation, hostname, vcpus, memory_bytes: memoryBytes };
}

function shutdownData(reason: ShutdownReason): LogEventData["shutdown"] {
  return { stopped_at: new Date().toISOString(), reason };
}

interface Progress {
  /** null until the command has ended */
  ended: CommandFigures | null;
}

/**
 * Adds the figures of the command to the details of an error. When the command has not ended, only the host can still
 * measure the resources that it has used.
 */
async function withFigures(error: unknown, { ended }: Progress, instance: RunningInstance): Promise<unknown> {
  if (!(error instanceof ApiError)) return error;
  const { cpuTimeMs, memoryBytes } = ended ?? (await hostFigures(instance));
  const exit = ended === null ? {} : { exit_code: ended.exitCode, timed_out: ended.timedOut };
  const figures = { ...exit, cpu_time_ms: cpuTimeMs, memory_bytes: memoryBytes };
  return new ApiError(error.code, error.message, { ...error.details, ...figures }, { cause: error });
}

async function hostFigures(instance: RunningInstance): Promise<Pick<CommandFigures, "cpuTimeMs" | "memoryBytes">> {
  const { cpuTimeMs, memoryPeakBytes } = await instance.stats();
  return { cpuTimeMs, memoryBytes: memoryPeakBytes };
}

interface CommandContext extends StartedInstance {
  readonly limit: TimeLimit;
  readonly progress: Progress;
}

/** Waits for the end of a command that has started, and captures what it has changed. */
async function finish(
  instance: RunningInstance,
  tools: InstanceTools & Indexing,
  job: LoggedJob,
  context: CommandContext,
): Promise<InstanceOutcome> {
  const { isolation } = instance;
  const suspended = await suspension(instance, job);
  if (suspended !== null) {
    const { parentIndex, commandLog } = job;
    const run = { ...context, instance, record: suspended, parentIndex, commandLog };
    const { exit, layer } = await captureSuspended(tools, run);
    const sizes = { stdout: job.commandLog.bytes("stdout"), stderr: job.commandLog.bytes("stderr") };
    return { ...reportedEnd(exit), ...sizes, isolation, layer, captured: true };
  }
  const run = await awaitEnd(instance, tools, job, context);
  const notCaptured = { ...run.figures, isolation, layer: null, captured: false };
  const isCaptured = job.idle?.isCaptured(run.figures) ?? !job.submission.disposable;
  if (!run.agentAnswers || !isCaptured) return notCaptured;
  // The agent does not freeze the scratch during a copy of it.
  await withinTime(instance.endCopy(), CAPTURE_MS, () => undefined);
  const finished = {
    disk: context.scratchPath,
    parentIndex: job.parentIndex,
    parentLayer: job.parentLayer,
    ranMs: run.ranMs,
  };
  try {
    const layer = await captureOrBlame(instance.machine, () => captureScratch(tools, instance, finished));
    return { ...run.figures, isolation, layer, captured: true };
  } catch (error) {
    if (!run.figures.timedOut || !(error instanceof CaptureError)) throw error;
    // An instance that timed out succeeds without an image when its guest cannot be captured.
    await instance.machine.kill();
    return notCaptured;
  }
}

/** The record from which the processes continue later; null when the command ends. */
async function suspension({ command }: RunningInstance, { idle }: LoggedJob): Promise<ResumableInstance | null> {
  const ended = command.exit.then(
    () => null,
    () => null,
  );
  return idle === undefined ? null : await Promise.race([idle.suspended, ended]);
}

type CommandFigures = Omit<InstanceOutcome, "isolation" | "layer" | "captured">;

interface FinishedCommand {
  readonly figures: CommandFigures;
  readonly ranMs: number;
  /** false when the agent did not report the end of the command: its machine is useless then */
  readonly agentAnswers: boolean;
}

async function awaitEnd(
  instance: RunningInstance,
  tools: InstanceTools,
  { commandLog, idle }: LoggedJob,
  { limit, startedAt, progress }: CommandContext,
): Promise<FinishedCommand> {
  const { command } = instance;
  const ended = idle === undefined ? limit.within(command.exit, READERS_MS_MAX, startedAt) : command.exit;
  const reported = await ended;
  const exit = reported ?? (await lateExit(instance, command.exit));
  if (exit === null) commandLog.abandon();
  const ranMs = performance.now() - startedAt;
  tools.laps.lap("exec");
  const end = exit === null ? await unreportedEnd(instance) : reportedEnd(exit);
  if (exit !== null) {
    // The other processes died with the command: log their ends before the log is closed.
    const settled = instance.settled();
    await withinTime(settled, READERS_MS_MAX, () => lateExit(instance, settled));
    await tools.network.drain(DRAIN_MS_MAX);
  } else commandLog.cutOff({ ...end, ranMs });
  progress.ended = { ...end, stdout: commandLog.bytes("stdout"), stderr: commandLog.bytes("stderr") };
  return { figures: progress.ended, ranMs, agentAnswers: exit !== null };
}

/**
 * Waits for an exit that is due. The agent reports it after the last byte of the output, so this no longer waits for slow
 * readers. Null when no report arrives: the command may have starved the agent.
 */
async function lateExit<T>(instance: RunningInstance, exit: Promise<T>): Promise<T | null> {
  instance.letReadersGo();
  return await withinTime(exit, EXIT_GRACE_MS - READERS_MS_MAX, () => null);
}

type CommandEnd = Omit<CommandFigures, "stdout" | "stderr">;

/** The end of a command that the agent did not report; the figures are those of the host. */
async function unreportedEnd(instance: RunningInstance): Promise<CommandEnd> {
  return { exitCode: SIGKILL_EXIT_CODE, timedOut: true, oomKilled: false, ...(await hostFigures(instance)) };
}

function reportedEnd({ exitCode, timedOut, oomKilled, cpuTimeUs, memoryPeakBytes }: AgentExit): CommandEnd {
  const figures = { cpuTimeMs: Number(cpuTimeUs / 1000n), memoryBytes: Number(memoryPeakBytes) };
  return { exitCode, timedOut, oomKilled, ...figures };
}

function limitOf({ submission: { timeoutSeconds, requestedAt } }: InstanceJob): TimeLimit {
  // The clock may have been set back.
  const waitedMs = requestedAt === null ? null : Math.max(0, Date.now() - requestedAt);
  return new TimeLimit(timeoutSeconds * 1000, waitedMs);
}
