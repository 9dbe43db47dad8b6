import { join } from "node:path";
import { ApiError } from "../../../domain/errors.ts";
import { given } from "../../../domain/given.ts";
import { Spid } from "../../../domain/log-event.ts";
import type { CommandEnd, LogSummary } from "../../../storage/events/log-summary.ts";
import { withinTime } from "../../../system/waiting.ts";
import { Agent, type ExecHandle, type ReconnectedAgent } from "../../../vm/agent/agent.ts";
import type { InputBytes } from "../../../vm/agent/exec-spec.ts";
import { DisksState } from "../../../vm/agent/protocol.ts";
import type { SessionReport } from "../../../vm/agent/reconnect.ts";
import { machineExitOf, VmmError } from "../../../vm/machine-end.ts";
import { syncAgent } from "../../../vm/templates.ts";
import type { Machine } from "../../../vm/vmm.ts";
import { SCRATCH_SERIAL } from "../../machines/steps.ts";
import { interruptedText } from "../../survivors/instance-record.ts";
import { type LeftInstance, NotBegunError, type Survivor } from "../../survivors/survey.ts";
import { type InstanceOutcome, inInstance, withoutFirst } from "../execute.ts";
import { outputPosition, ProcessNumbers, tapped } from "../instance-process.ts";
import { ProcessLog } from "../process-log.ts";
import { ProcessTaps } from "../process-taps.ts";
import { type ContinuedProcess, RunningInstance } from "../running-instance.ts";
import { type InstanceJob, type InstanceTools, keptFacts, specOf } from "../start-instance.ts";
import { TimeLimit } from "../time-limit.ts";
import { type AdoptedProcess, adoptedProcesses, exitOf, ranMsOf, spidLastOf } from "./adopted-processes.ts";
import type { InstanceKeeper } from "./instance-keeper.ts";

/** Time for an agent to answer, in `milliseconds`. A guest that freezes its disk answers afterwards. */
const ANSWER_MS_MAX = 30_000;
/** A machine that ends meanwhile closes its stream before it is known to have ended. */
const EXIT_MS_MAX = 500;

/** A job with what the log of its additional processes says. */
export interface AdoptedJob extends InstanceJob {
  readonly left: LeftInstance;
  /** of the log of a sandbox; absent: that of the operation has all processes */
  readonly others?: LogSummary | undefined;
}

/**
 * Continues an instance that a former process has left, from its record, its log and the report of its agent. The machine is
 * gone when this returns or throws.
 * @throws NotBegunError; ApiError `unavailable` that names why it cannot be continued; otherwise as `execute` does
 */
export async function adopt(
  tools: InstanceTools & { readonly keeper: InstanceKeeper },
  job: AdoptedJob,
  signal: AbortSignal,
): Promise<InstanceOutcome> {
  const { instances, network, keeper } = tools;
  const { survivor, summary } = job.left;
  const { record } = survivor;
  const events = job.idle?.processEvents ?? tools.events;
  await using owned = new AsyncDisposableStack();
  const machine = owned.use(await opened(survivor));
  const agent = await reconnected(machine, tools, signal);
  // The record had every change before the agent. A guest that owns its agent may report any limit.
  const limit = TimeLimit.resume(record.limit);
  const { isolation, hostname, generation, resumed } = record;
  const parts = { limit, hostname, events, network, image: job.image, keeper, ...given({ generation }) };
  using run = instances.open(job.operationId, parts);
  const { instance, commandLog, ranMs } = continued(tools, job, { machine, reconnected: agent, limit });
  await using _instance = instance;
  owned.move();
  extend(instance, agent, limit);
  keeper.resume(machine, record, () => keptFacts(job, { limit, isolation, network, hostname, generation, resumed }));
  const scratchPath = scratchOf(machine);
  tools.diskUse.add(scratchPath);
  const after_ms = Math.max(0, Date.now() - (job.others?.lastMs ?? summary.lastMs ?? Date.now()));
  for (const log of new Set([tools.events, events]))
    log.append(Spid.agent, "adopted", { after_ms, daemon: keeper.daemon });
  const startedAt = performance.now() - ranMs;
  const begin = async () => {
    agent.agent.proceed();
    // The process before may not have come to that.
    if (resumed === true) await syncAgent(agent.agent);
    return { scratchPath, startedAt };
  };
  return await inInstance(instance, tools, { job: { ...job, commandLog }, run, begin }, signal);
}

/** @throws ApiError */
async function opened(survivor: Survivor): Promise<Machine> {
  try {
    return await survivor.open();
  } catch (error) {
    const exit = machineExitOf(error);
    if (exit !== null) throw notContinued(`its machine ended while no service ran: ${exit.detail}`, error);
    throw notContinued(error instanceof VmmError ? error.message : "its machine cannot be opened", error);
  }
}

/** @throws ApiError; the reason of `signal` */
async function reconnected(
  machine: Machine,
  { network }: Pick<InstanceTools, "network">,
  signal: AbortSignal,
): Promise<ReconnectedAgent> {
  const { channel } = machine;
  const reconnect = async (pauseMs: number) => (await machine.reconnect?.(pauseMs)) ?? channel;
  const late = AbortSignal.timeout(ANSWER_MS_MAX);
  const served = network.wasOn ? network : null;
  try {
    return await Agent.reconnect({ channel, reconnect }, { network: served, signal: AbortSignal.any([signal, late]) });
  } catch (error) {
    signal.throwIfAborted();
    const exit = await withinTime(machine.exited, EXIT_MS_MAX, () => null);
    const why = late.aborted ? "its agent does not answer" : error instanceof Error ? error.message : String(error);
    throw notContinued(exit === null ? why : `its machine ended: ${exit.detail}`, error);
  }
}

function extend(instance: RunningInstance, { sessions }: Pick<ReconnectedAgent, "sessions">, limit: TimeLimit): void {
  const report = sessions.find(({ spid }) => spid === Spid.command);
  const { fromStartMs } = limit.record();
  if (report !== undefined && report.limitMs < fromStartMs) instance.process(Spid.command)?.limit(fromStartMs);
}

interface Parts {
  readonly machine: Machine;
  readonly reconnected: ReconnectedAgent;
  readonly limit: TimeLimit;
}

interface Continued {
  readonly instance: RunningInstance;
  readonly commandLog: ProcessLog;
  /** since the start of the command, in `milliseconds` */
  readonly ranMs: number;
}

/** @throws NotBegunError; ApiError */
function continued(tools: InstanceTools, job: AdoptedJob, { machine, reconnected, limit }: Parts): Continued {
  const { agent, sessions, disks } = reconnected;
  const { summary, survivor } = job.left;
  const { commandEnd: end } = summary;
  const report = sessions.find(({ spid }) => spid === Spid.command);
  checkState(job.left, reconnected, report);
  const { truncateOutputAtBytes: limitBytes, stdinOpen: keepsInput } = job.submission;
  // An end that is logged is not logged again: what the agent has of the command is forgotten.
  const reports = end === null ? sessions : sessions.filter(({ spid }) => spid !== Spid.command);
  const logged = { command: summary, others: job.others ?? summary };
  const processes = orRefusal(() => adoptedProcesses(reports, logged, { limitBytes, keepsInput }));
  const command = processes.find((process) => process.report === report)?.log;
  const commandLog = new ProcessLog(
    tools.events,
    { spid: Spid.command, truncateOutputAtBytes: limitBytes },
    command ?? { pid: 0, started: null, stdinBytes: 0, ...(end?.outputs ?? NOTHING) },
  );
  const parts = { agent, commandLog, limit };
  const attached = processes.map((process) => orRefusal(() => attach(tools, job, process, parts)));
  const ended = end === null ? [] : [endedCommand(job, end, commandLog)];
  const instance = RunningInstance.continue(
    {
      machine,
      agent,
      isolation: survivor.record.isolation,
      [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose](),
    },
    {
      disks: { layers: layersOf(survivor.record, machine), scratch: { path: scratchOf(machine), use: "root" } },
      numbers: new ProcessNumbers(job.idle?.numbers ?? { last: spidLastOf(summary.spidLast, sessions) }),
      processes: [...ended, ...attached].sort((one, other) => one.spid - other.spid),
      isFrozen: disks === DisksState.frozen,
    },
  );
  const start = summary.running.get(Spid.command)?.start ?? null;
  return { instance, commandLog, ranMs: report === undefined ? (end?.exit.duration_ms ?? 0) : ranMsOf(report, start) };
}

const NOTHING = { stdout: { kept: 0, dropped: 0 }, stderr: { kept: 0, dropped: 0 } };

/** @throws NotBegunError; ApiError */
function checkState({ summary }: LeftInstance, { disks }: ReconnectedAgent, command: SessionReport | undefined): void {
  const { commandEnd: end, running } = summary;
  const isLogged = end !== null || (running.get(Spid.command)?.start ?? null) !== null;
  if (!isLogged && command?.started !== true) throw new NotBegunError("the command has not begun");
  if (end === null && command === undefined) throw notContinued("its agent has lost the command");
  const isFrozen = end !== null && disks === DisksState.frozen;
  if (disks !== DisksState.root && !isFrozen) throw notContinued("its guest has lost its file system");
}

interface AttachParts {
  readonly agent: Agent;
  readonly commandLog: ProcessLog;
  readonly limit: TimeLimit;
}

/** @throws OutputGapError, AgentProtocolError */
function attach(
  tools: InstanceTools,
  job: AdoptedJob,
  { report, log, keepsInput, isCut, truncateOutputAtBytes }: AdoptedProcess,
  { agent, commandLog, limit }: AttachParts,
): ContinuedProcess {
  const { spid, hasTerminal, started: hasStarted } = report;
  const events = job.idle?.processEvents ?? tools.events;
  const own = spid === Spid.command ? commandLog : new ProcessLog(events, { spid, truncateOutputAtBytes }, log);
  const sink = log.start === null ? own.sink(specOf({ ...job, commandLog }, limit.ms)) : own.resume(log.start);
  const taps = new ProcessTaps(sink.bytes);
  const { onStart, ...ends } = tapped(sink, taps);
  const start = log.start === null ? { onStart } : {};
  const first = firstInput(job, report, { commandLog, isCut });
  const handle = agent.attach(report, {
    ...ends,
    ...start,
    logged: outputPosition(log, log.start?.output_before),
    keepsInput,
    ...given({ first }),
  });
  const isInputOpen = keepsInput && !report.inputEnded;
  const cwd = log.start?.cwd ?? job.submission.cwd;
  return { spid, cwd, hasTerminal, hasStarted, keepsInput, isInputOpen, isCut, handle, sink, taps };
}

/** The rest of the first input; undefined: the process has all of it, and its end. */
function firstInput(
  { submission }: AdoptedJob,
  { spid, hasInput, inputEnded, finished, stdinTakenBytes: from }: SessionReport,
  { commandLog, isCut }: { readonly commandLog: ProcessLog; readonly isCut: boolean },
): InputBytes | undefined {
  if (!hasInput || inputEnded || finished || isCut) return undefined;
  const rest = spid === Spid.command ? withoutFirst(submission.stdin?.() ?? [], from) : withoutFirst([], 0);
  return spid === Spid.command ? commandLog.counting(rest, from) : rest;
}

/** A command of which only the log is left: its files are to be captured. */
function endedCommand(job: AdoptedJob, end: CommandEnd, commandLog: ProcessLog): ContinuedProcess {
  const ignore = () => undefined;
  const handle: ExecHandle = {
    ...{ session: 0, inputPosition: 0, started: Promise.resolve(), exit: Promise.resolve(exitOf(end)) },
    ...{ signal: ignore, resize: ignore, limit: ignore },
    ...{ write: () => Promise.resolve(false), end: () => Promise.resolve() },
  };
  const sink = commandLog.sink(specOf({ ...job, commandLog }, 0));
  const { cwd } = job.submission;
  const input = { hasTerminal: false, keepsInput: false, isInputOpen: false, isCut: false };
  return { spid: Spid.command, cwd, hasStarted: true, ...input, handle, sink, taps: new ProcessTaps(sink.bytes) };
}

/** @throws ApiError instead of what `work` throws */
function orRefusal<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw notContinued(error instanceof Error ? error.message : String(error), error);
  }
}

/** The layers as the machine has them. Those of a copy may be gone elsewhere: their images were merged or deleted since. */
function layersOf({ machine: { disks } }: Survivor["record"], { directory }: Machine): string[] {
  return disks.flatMap(({ serial }) => (serial === SCRATCH_SERIAL ? [] : [join(directory, serial)]));
}

function scratchOf({ directory }: Machine): string {
  return join(directory, SCRATCH_SERIAL);
}

function notContinued(reason: string, cause?: unknown): ApiError {
  return new ApiError("unavailable", interruptedText(reason), {}, { cause });
}
