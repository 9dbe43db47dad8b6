import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { ImageDefaults } from "../../domain/image-defaults.ts";
import { type LogEventData, type ShutdownReason, Spid } from "../../domain/log-event.ts";
import type { Isolation, Phase } from "../../domain/operation.ts";
import type { InstanceRequest } from "../../domain/spawn.ts";
import { parseGuestPathText } from "../../domain/tree/guest-path.ts";
import type { Log } from "../../log.ts";
import { blobStream } from "../../storage/blobs.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";
import type { LayerChain } from "../../storage/layers/layer-store.ts";
import type { Indexing, StagedLayer } from "../../storage/layers/staged-layer.ts";
import { withinTime } from "../../system/waiting.ts";
import type { AgentExecSpec, AgentExit } from "../../vm/agent/agent.ts";
import { CAPTURE_MS, prepareMs } from "../machines/guest-budgets.ts";
import { rethrowPathError } from "../machines/guest-errors.ts";
import { GuestTime } from "../machines/guest-time.ts";
import { inMachine, type MachineSource, withReplacement } from "../machines/machine-source.ts";
import type { ScratchDisks } from "../machines/scratch-disks.ts";
import { createScratch } from "../machines/steps.ts";
import type { InstanceNetwork } from "../network/instance-network.ts";
import { type CaptureTools, captureScratch } from "./capture.ts";
import { CaptureError, captureOrBlame } from "./capture-failure.ts";
import { execSpec } from "./exec-spec.ts";
import type { LiveInstances, LiveRun } from "./live-instances.ts";
import { ProcessLog } from "./process-log.ts";
import { RunningInstance } from "./running-instance.ts";
import { TimeLimit } from "./time-limit.ts";

/** The agent enforces the time limit; the host waits this much longer for the agent's report. */
const EXIT_GRACE_MS = 5000;
/** The part of it in which slow readers can still take the rest of the output. */
const READERS_MS_MAX = 2000;
const SIGKILL_EXIT_CODE = 137;
/** Connections whose programs have ended get this time to pass on what was sent. */
const DRAIN_MS_MAX = 1000;

export interface InstanceJob {
  readonly operationId: OperationId;
  readonly submission: InstanceRequest;
  /** the layers to attach; merged layers may stand in for those of the image */
  readonly image: LayerChain;
  /** host path of the index of the image's own top layer */
  readonly parentIndex: string;
  /** those of the image */
  readonly defaults: ImageDefaults;
}

/** Outcome of a run. */
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
  /** false for a disposable run, and for one whose machine was killed before its files could be read */
  readonly captured: boolean;
}

export interface InstanceTools extends CaptureTools {
  readonly machines: MachineSource;
  readonly scratchDisks: ScratchDisks;
  readonly log: Log;
  /** registers the instance while it has a machine */
  readonly instances: LiveInstances;
  readonly events: EventLog;
  /** null: none */
  readonly network: InstanceNetwork | null;
  /** told how many connections a guest without a network tried to open */
  readonly uninvited: (count: number) => void;
}

/**
 * Runs the command of an instance in a machine of its own. A machine that ends before the command began is replaced
 * once. The machine is gone when this returns or throws.
 * @throws ApiError that names the cause when the guest or the host failed; the reason of `signal`
 */
export async function execute(tools: InstanceTools, job: InstanceJob, signal: AbortSignal): Promise<InstanceOutcome> {
  const { instances, log } = tools;
  const limit = limitOf(job);
  using run = instances.open(job.operationId, { limit, hostname: hostnameOf(job), events: tools.events });
  const { truncateOutputAtBytes } = job.submission;
  const commandLog = new ProcessLog(tools.events, { spid: Spid.command, truncateOutputAtBytes });
  const attempt = () => executeOnce(tools, { ...job, commandLog }, run, signal);
  return await withReplacement(attempt, { goal: "the command began", log });
}

interface LoggedJob extends InstanceJob {
  readonly commandLog: ProcessLog;
}

/** @throws MachineLostError only when the command has not begun; otherwise as `execute` does */
async function executeOnce(
  tools: InstanceTools,
  job: LoggedJob,
  run: LiveRun,
  signal: AbortSignal,
): Promise<InstanceOutcome> {
  const { events } = tools;
  await using instance = await RunningInstance.take(tools.machines, job.submission.resources, signal);
  tools.laps.lap("clone");
  using _entered = run.enter(instance);
  using _reported = { [Symbol.dispose]: () => tools.uninvited(instance.agent.uninvitedCount) };
  events.append(Spid.agent, "init", initData(job, instance));
  const progress: Progress = { ended: null };
  try {
    const outcome = await inMachine(instance, signal, () =>
      runAndCapture(instance, { ...tools, signal }, job, { progress, limit: run.parts.limit }),
    );
    // Its last events come before the end of the log.
    await tools.network?.[Symbol.asyncDispose]();
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

function initData(job: InstanceJob, { isolation }: RunningInstance): LogEventData["init"] {
  const { vcpus, memoryBytes } = job.submission.resources;
  const started_at = new Date().toISOString();
  return { started_at, isolation, hostname: hostnameOf(job), vcpus, memory_bytes: memoryBytes };
}

function shutdownData(reason: ShutdownReason): LogEventData["shutdown"] {
  return { stopped_at: new Date().toISOString(), reason };
}

interface Progress {
  /** null until the command has ended */
  ended: RunFigures | null;
}

/**
 * Adds the figures of the command to the details of an error. When the command has not ended, only the host can still
 * measure what it has used.
 */
async function withFigures(error: unknown, { ended }: Progress, instance: RunningInstance): Promise<unknown> {
  if (!(error instanceof ApiError)) return error;
  const { cpuTimeMs, memoryBytes } = ended ?? (await hostFigures(instance));
  const exit = ended === null ? {} : { exit_code: ended.exitCode, timed_out: ended.timedOut };
  const figures = { ...exit, cpu_time_ms: cpuTimeMs, memory_bytes: memoryBytes };
  return new ApiError(error.code, error.message, { ...error.details, ...figures }, { cause: error });
}

async function hostFigures(instance: RunningInstance): Promise<Pick<RunFigures, "cpuTimeMs" | "memoryBytes">> {
  const { cpuTimeMs, memoryPeakBytes } = await instance.stats();
  return { cpuTimeMs, memoryBytes: memoryPeakBytes };
}

async function runAndCapture(
  instance: RunningInstance,
  tools: InstanceTools & Indexing,
  job: LoggedJob,
  more: Pick<CommandContext, "progress" | "limit">,
): Promise<InstanceOutcome> {
  const { isolation } = instance;
  const { resources, disposable } = job.submission;
  const scratchPath = await createScratch(instance, tools.scratchDisks, resources.diskBytes);
  tools.diskUse.add(scratchPath);
  const run = await runCommand(instance, tools, { ...more, job, scratchPath });
  const notCaptured = { ...run.figures, isolation, layer: null, captured: false };
  if (!run.agentAnswers || disposable) return notCaptured;
  // The agent does not freeze the scratch during a copy of it.
  await withinTime(instance.endCopy(), CAPTURE_MS, () => undefined);
  const finished = { disk: scratchPath, parentIndex: job.parentIndex, ranMs: run.ranMs };
  try {
    const layer = await captureOrBlame(instance.machine, () => captureScratch(tools, instance, finished));
    return { ...run.figures, isolation, layer, captured: true };
  } catch (error) {
    if (!run.figures.timedOut || !(error instanceof CaptureError)) throw error;
    // A run that timed out succeeds without an image when its guest cannot be captured.
    await instance.machine.kill();
    return notCaptured;
  }
}

interface Step {
  readonly phase: Phase;
  readonly name: string;
  readonly done: Promise<void>;
}

/**
 * Starts all steps that precede the command at once: the agent handles requests in order, waits for the disks by itself,
 * and fails every step after one that failed.
 */
function prepare(
  instance: RunningInstance,
  tools: InstanceTools,
  {
    job: { image, submission },
    scratchPath,
    time,
  }: Pick<CommandContext, "job" | "scratchPath"> & { readonly time: GuestTime },
): Step[] {
  const { attached, mounted } = instance.attach({
    layers: image.files.map(({ disk }) => disk),
    scratch: { path: scratchPath, use: "root" },
  });
  const steps: Step[] = [
    { phase: "attach", name: "attaching the disks", done: attached },
    { phase: "mount", name: "mounting the image", done: mounted },
  ];
  if (tools.network !== null) {
    const done = instance.agent.network(tools.network, { ipv6: false });
    done.catch(() => undefined);
    steps.push({ phase: "mount", name: "giving the instance its network", done });
  }
  for (const file of submission.files) {
    const done = instance.agent
      .putFile({
        path: parseGuestPathText(file.path),
        mode: file.mode,
        owner: { uid: file.uid, gid: file.gid },
        sizeBytes: file.sizeBytes,
        content: time.counting(openLazily(() => blobStream(tools.layout, file.sha256))),
      })
      .catch((error: unknown) => rethrowPathError(error, file.path, "placing"));
    // The steps are awaited in order, and a later one fails because an earlier one did: report the earlier failure.
    done.catch(() => undefined);
    steps.push({ phase: "files", name: `placing ${file.path}`, done });
  }
  return steps;
}

/** Opens the stream when its first chunk is read: a run may have a thousand files, and each takes a descriptor. */
async function* openLazily(open: () => AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  yield* open();
}

interface CommandContext {
  readonly job: LoggedJob;
  readonly scratchPath: string;
  readonly progress: Progress;
  readonly limit: TimeLimit;
}

type RunFigures = Omit<InstanceOutcome, "isolation" | "layer" | "captured">;

interface FinishedCommand {
  readonly figures: RunFigures;
  readonly ranMs: number;
  /** false when the agent did not report the end of the command: its machine is useless then */
  readonly agentAnswers: boolean;
}

async function runCommand(
  instance: RunningInstance,
  tools: InstanceTools,
  context: CommandContext,
): Promise<FinishedCommand> {
  const { laps } = tools;
  const { job, progress, limit } = context;
  const { commandLog } = job;
  const time = new GuestTime({ allowedMs: prepareMs });
  const steps = prepare(instance, tools, { ...context, time });
  const spec = specOf(job, limit);
  // The log has the limit that was requested.
  const command = instance.start(spec, commandLog.sink({ ...spec, timeoutMs: limit.ms }));
  for (const [index, { phase, name, done }] of steps.entries()) {
    await time.wait(name, done);
    // All files together are one step.
    if (steps[index + 1]?.phase !== phase) laps.lap(phase);
  }
  await time.wait("starting the command", command.started);
  const startedAt = performance.now();
  const exit = (await limit.within(command.exit, READERS_MS_MAX)) ?? (await lateExit(instance, command.exit));
  const ranMs = performance.now() - startedAt;
  laps.lap("exec");
  const end = exit === null ? await unreportedEnd(instance) : reportedEnd(exit);
  if (exit !== null) {
    commandLog.exited(exit);
    // The other processes died with the command: log their ends before the log is closed.
    const settled = instance.settled();
    await withinTime(settled, READERS_MS_MAX, () => lateExit(instance, settled));
    await tools.network?.drain(DRAIN_MS_MAX);
  } else commandLog.cutOff({ ...end, ranMs });
  progress.ended = { ...end, stdout: commandLog.bytes("stdout"), stderr: commandLog.bytes("stderr") };
  return { figures: progress.ended, ranMs, agentAnswers: exit !== null };
}

/**
 * Waits for an exit that is due. The agent reports it after the last byte of the output, which readers may be too slow to
 * take, so they no longer count. Null when the report does not come: the command may have starved the agent.
 */
async function lateExit<T>(instance: RunningInstance, exit: Promise<T>): Promise<T | null> {
  instance.letReadersGo();
  return await withinTime(exit, EXIT_GRACE_MS - READERS_MS_MAX, () => null);
}

type CommandEnd = Omit<RunFigures, "stdout" | "stderr">;

/** The end of a command that the agent did not report; the figures are those of the host. */
async function unreportedEnd(instance: RunningInstance): Promise<CommandEnd> {
  return { exitCode: SIGKILL_EXIT_CODE, timedOut: true, oomKilled: false, ...(await hostFigures(instance)) };
}

function reportedEnd({ exitCode, timedOut, oomKilled, cpuTimeUs, memoryPeakBytes }: AgentExit): CommandEnd {
  const figures = { cpuTimeMs: Number(cpuTimeUs / 1000n), memoryBytes: Number(memoryPeakBytes) };
  return { exitCode, timedOut, oomKilled, ...figures };
}

function specOf(job: LoggedJob, limit: TimeLimit): AgentExecSpec {
  const { stdin, ...command } = job.submission;
  const counted = stdin === null ? null : job.commandLog.counting(stdin());
  const { defaults } = job;
  return execSpec(command, { hostname: hostnameOf(job), timeoutMs: limit.begin(), defaults, stdin: counted });
}

function limitOf({ submission: { timeoutSeconds, requestedAt } }: InstanceJob): TimeLimit {
  // The clock may have been set back.
  const waitedMs = requestedAt === null ? null : Math.max(0, Date.now() - requestedAt);
  return new TimeLimit(timeoutSeconds * 1000, waitedMs);
}

function hostnameOf({ operationId, submission }: InstanceJob): string {
  // A version 7 UUID starts with the time; its last 12 digits are random.
  return submission.hostname ?? `coppice-${operationId.slice(-12)}`;
}
