import { constants } from "node:os";
import { join } from "node:path";
import { ApiError } from "../../domain/errors.ts";
import { parseGuestPathText } from "../../domain/guest-path.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { Isolation } from "../../domain/operation.ts";
import { OutputCapture } from "../../domain/output.ts";
import type { Log } from "../../log.ts";
import type { Phase } from "../../metrics.ts";
import { blobStream } from "../../storage/blobs.ts";
import { withinTime } from "../../system/waiting.ts";
import { type Agent, AgentError, type AgentExit } from "../../vm/agent/agent.ts";
import type { Disk, Machine } from "../../vm/vmm.ts";
import { inMachine, type MachineSource, type ReadyMachine, withReplacement } from "../machines/machines.ts";
import type { ScratchDisks } from "../machines/scratch-disks.ts";
import type { InstanceRequest } from "../operations/ports.ts";
import { type CaptureTools, captureScratch, type Indexing, type StagedLayer } from "./capture.ts";
import { fromGuest, NotKeptError } from "./capture-failure.ts";
import { prepareMs } from "./guest-budgets.ts";
import { GuestTime } from "./guest-time.ts";

/** The agent enforces the time limit; this long after it the host stops waiting for the agent's word. */
const EXIT_GRACE_MS = 5000;
const SIGKILL_EXIT_CODE = 137;
/** The guest's error numbers are those of this host, which is Linux on x86_64, too. */
const { EACCES, EINVAL, ENOENT, ENXIO, EPERM, EROFS } = constants.errno;
/** What lies at the path is no file: a FIFO without a reader, a device, a socket, a symlink that leads nowhere. */
const ERRNOS_OF_PLACING = [ENOENT, ENXIO, EACCES, EINVAL];
/** The directory is missing where none can be made, as in /proc, or at the end of a symlink, or must not be entered. */
const ERRNOS_OF_ENTERING = [EPERM, ENOENT, EACCES, EINVAL, EROFS];

const PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const HOME_DEFAULT = "/root";

export interface InstanceJob {
  readonly operationId: OperationId;
  readonly submission: InstanceRequest;
  /** raw disks of the image's layers, the lowest first */
  readonly layerDisks: readonly string[];
  /** index of the topmost of them */
  readonly parentIndex: string;
}

/** What a run came to. `layer` is null when nothing was captured: see `captured`. */
export interface InstanceOutcome {
  readonly exitCode: number;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  readonly isolation: Isolation;
  readonly cpuTimeMs: number;
  readonly memoryBytes: number;
  readonly stdout: OutputCapture;
  readonly stderr: OutputCapture;
  /** the changed files; null when nothing changed or nothing was to be kept */
  readonly layer: StagedLayer | null;
  /** false when disposable, or when the machine had to be killed before its files could be read */
  readonly captured: boolean;
}

export interface InstanceTools extends CaptureTools {
  readonly machines: MachineSource;
  readonly scratchDisks: ScratchDisks;
  readonly log: Log;
  /** Called when a machine is taken, and again when another one replaces it: its cgroup tells the live figures. */
  readonly onMachine: (machine: Machine) => void;
}

/**
 * Runs the command of an instance in a machine of its own, which is replaced, once, when it ends before the command
 * began. The machine is gone when this returns, throws or is aborted.
 * @throws ApiError with the cause when the guest or the host failed; the reason of `signal`
 */
export function execute(tools: InstanceTools, job: InstanceJob, signal: AbortSignal): Promise<InstanceOutcome> {
  const { log } = tools;
  return withReplacement(() => executeOnce(tools, job, signal), { goal: "the command began", log });
}

/** @throws MachineLostError only where the command has not begun; otherwise as `execute` */
async function executeOnce(tools: InstanceTools, job: InstanceJob, signal: AbortSignal): Promise<InstanceOutcome> {
  await using ready = await tools.machines.take(job.submission.resources, signal);
  tools.laps.lap("clone");
  tools.onMachine(ready.machine);
  const progress: Progress = { begun: false, ended: null };
  try {
    return await inMachine(ready, signal, () => runIn(ready, { ...tools, signal }, job, progress));
  } catch (error) {
    throw progress.begun ? await withFigures(error, progress, ready.machine) : error;
  }
}

/** How far a command came. */
interface Progress {
  begun: boolean;
  /** set once it has ended */
  ended: RunFigures | null;
}

/**
 * The error, with what the command came to, or had used when it was cut off: then the machine's figures are the only
 * ones left.
 */
async function withFigures(error: unknown, { ended }: Progress, { cgroup }: Machine): Promise<unknown> {
  if (!(error instanceof ApiError)) return error;
  const { cpuTimeMs, memoryBytes } = ended ?? (await hostFigures(cgroup));
  const exit = ended === null ? {} : { exit_code: ended.exitCode, timed_out: ended.timedOut };
  const figures = { ...exit, cpu_time_ms: cpuTimeMs, memory_bytes: memoryBytes };
  return new ApiError(error.code, error.message, { ...error.details, ...figures }, { cause: error });
}

async function hostFigures(cgroup: Machine["cgroup"]): Promise<Pick<RunFigures, "cpuTimeMs" | "memoryBytes">> {
  const { cpuTimeMs, memoryPeakBytes } = await cgroup.stats();
  return { cpuTimeMs, memoryBytes: memoryPeakBytes };
}

async function runIn(
  ready: ReadyMachine,
  tools: InstanceTools & Indexing,
  job: InstanceJob,
  progress: Progress,
): Promise<InstanceOutcome> {
  const { machine, agent, isolation } = ready;
  const { submission } = job;
  const scratchPath = join(machine.directory, "S");
  await tools.scratchDisks.stamp(submission.resources.diskBytes, scratchPath);
  tools.diskUse.add(scratchPath);
  const run = await runCommand(ready, tools, { job, scratchPath, progress });
  const notCaptured = { ...run.figures, isolation, layer: null, captured: false };
  if (!run.agentAnswers || submission.disposable) return notCaptured;
  const finished = { disk: scratchPath, parentIndex: job.parentIndex, ranMs: run.ranMs };
  try {
    const layer = await fromGuest(machine, () => captureScratch(tools, { machine, agent }, finished));
    return { ...run.figures, isolation, layer, captured: true };
  } catch (error) {
    if (!run.figures.timedOut || !(error instanceof NotKeptError)) throw error;
    // The run has its result: it ran over. What it does to its machine afterwards costs it its files, not the result.
    await machine.kill();
    return notCaptured;
  }
}

interface Step {
  readonly phase: Phase;
  readonly name: string;
  readonly done: Promise<void>;
}

/**
 * Begins everything that comes before the command, in one burst: the agent works requests off in order, waits
 * for the disks by itself, and after a failed step the later ones fail too.
 */
function prepare(
  { machine, agent }: ReadyMachine,
  tools: InstanceTools,
  {
    job: { layerDisks: layers, submission },
    scratchPath,
    time,
  }: Pick<Running, "job" | "scratchPath"> & { readonly time: GuestTime },
): Step[] {
  const disks = [...layerDisks(layers), { serial: "S", path: scratchPath, readOnly: false }];
  const steps: Step[] = [
    { phase: "attach", name: "attaching the disks", done: machine.attach(disks) },
    { phase: "mount", name: "mounting the image", done: agent.mount({ layers: layers.length, scratch: true }) },
  ];
  for (const file of submission.files) {
    const done = agent
      .putFile({
        path: parseGuestPathText(file.path),
        mode: file.mode,
        sizeBytes: file.sizeBytes,
        content: time.counting(openedWhenRead(() => blobStream(tools.layout, file.sha256))),
      })
      .catch((error: unknown) => rethrowPathError(error, file.path, ERRNOS_OF_PLACING));
    steps.push({ phase: "files", name: `placing ${file.path}`, done });
  }
  // Each is waited for in turn; the failure of one that is not waited for yet follows from an earlier one.
  for (const { done } of steps) done.catch(() => undefined);
  return steps;
}

/** A path of the request at which the image has something else. Elsewhere these errors are the machine's trouble. */
function rethrowPathError(error: unknown, path: string, errnos: readonly number[]): never {
  if (!(error instanceof AgentError) || !errnos.includes(error.errno)) throw error;
  throw new ApiError("invalid_path", error.message, { path, errno: error.errno }, { cause: error });
}

/** A stream that takes a descriptor only when its turn comes: a run may have a thousand files. */
async function* openedWhenRead(open: () => AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  yield* open();
}

/** Disks of an image's layers with the serials by which the agent finds them. */
export function layerDisks(paths: readonly string[]): Disk[] {
  return paths.map((path, index) => ({ serial: `L${String(index).padStart(2, "0")}`, path, readOnly: true }));
}

/** What a command needs to run. */
interface Running {
  readonly job: InstanceJob;
  readonly scratchPath: string;
  readonly progress: Progress;
}

type RunFigures = Omit<InstanceOutcome, "isolation" | "layer" | "captured">;

interface FinishedCommand {
  readonly figures: RunFigures;
  readonly ranMs: number;
  /** false when the agent did not say how the command ended: its machine is good for nothing any more */
  readonly agentAnswers: boolean;
}

async function runCommand(ready: ReadyMachine, tools: InstanceTools, running: Running): Promise<FinishedCommand> {
  const { machine, agent } = ready;
  const { laps } = tools;
  const { job, progress } = running;
  const { submission } = job;
  const time = new GuestTime({ allowedMs: prepareMs });
  const steps = prepare(ready, tools, { ...running, time });
  const stdout = new OutputCapture(submission.truncateOutputAtBytes);
  const stderr = new OutputCapture(submission.truncateOutputAtBytes);
  const timeoutMs = submission.timeoutSeconds * 1000;
  const handle = agent.exec(execSpec(job), (stream, chunk) => (stream === "stdout" ? stdout : stderr).push(chunk));
  // These settle when the agent is lost, whichever is being waited for.
  handle.exit.catch(() => undefined);
  handle.started.catch(() => undefined);
  for (const [index, { phase, name, done }] of steps.entries()) {
    await time.wait(name, done);
    // All files together are one step.
    if (steps[index + 1]?.phase !== phase) laps.lap(phase);
  }
  const started = handle.started.catch((error: unknown) => rethrowPathError(error, submission.cwd, ERRNOS_OF_ENTERING));
  await time.wait("starting the command", started);
  progress.begun = true;
  const startedAt = performance.now();
  // Its final word may not come in time: the command may have starved the agent.
  const exit = await withinTime(handle.exit, timeoutMs + EXIT_GRACE_MS, () => null);
  const ranMs = performance.now() - startedAt;
  laps.lap("exec");
  const end = exit === null ? await cutOff(machine) : reported(exit);
  progress.ended = { ...end, stdout, stderr };
  return { figures: progress.ended, ranMs, agentAnswers: exit !== null };
}

type CommandEnd = Omit<RunFigures, "stdout" | "stderr">;

/** The end of a command whose machine has to be ended with it. */
async function cutOff({ cgroup }: Machine): Promise<CommandEnd> {
  return { exitCode: SIGKILL_EXIT_CODE, timedOut: true, oomKilled: false, ...(await hostFigures(cgroup)) };
}

function reported({ exitCode, timedOut, oomKilled, cpuTimeUs, memoryPeakBytes }: AgentExit): CommandEnd {
  const figures = { cpuTimeMs: Number(cpuTimeUs / 1000n), memoryBytes: Number(memoryPeakBytes) };
  return { exitCode, timedOut, oomKilled, ...figures };
}

function execSpec({ operationId, submission }: InstanceJob): Parameters<Agent["exec"]>[0] {
  // The end of a version 7 UUID is random, its beginning is the time.
  const hostname = submission.hostname ?? `coppice-${operationId.slice(-12)}`;
  return {
    argv: [...submission.argv],
    env: { PATH: PATH_DEFAULT, HOME: HOME_DEFAULT, HOSTNAME: hostname, ...submission.env },
    cwd: submission.cwd,
    hostname,
    timeoutMs: submission.timeoutSeconds * 1000,
    ...(submission.stdin === null ? {} : { stdin: submission.stdin() }),
  };
}
