import { constants } from "node:os";
import { join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import { parseGuestPathText } from "../domain/guest-path.ts";
import type { OperationId } from "../domain/ids.ts";
import type { Isolation } from "../domain/operation.ts";
import { OutputCapture } from "../domain/output.ts";
import type { Laps, Phase } from "../metrics.ts";
import { blobStream } from "../storage/blobs.ts";
import type { DataLayout } from "../storage/layout.ts";
import { withinTime } from "../system/waiting.ts";
import { type Agent, AgentError, type AgentExit } from "../vm/agent.ts";
import type { Disk, Machine } from "../vm/vmm.ts";
import { captureScratch, type StagedLayer } from "./capture.ts";
import { withDeadline } from "./deadline.ts";
import { inMachine, type MachineSource, type ReadyMachine } from "./machines.ts";
import type { InstanceRequest } from "./ports.ts";
import type { ScratchDisks } from "./scratch-disks.ts";

/** Finding and mounting disks: a second under emulation, more on a busy host. */
export const MOUNT_MS_MAX = 180_000;
/** Placing one input file takes this and `PUT_MS_PER_MIB` for its size. */
const PUT_MS_MAX = 30_000;
const PUT_MS_PER_MIB = 1000;
const START_MS_MAX = 30_000;
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

export interface InstanceTools {
  readonly layout: DataLayout;
  readonly machines: MachineSource;
  readonly scratchDisks: ScratchDisks;
  /** Called when the machine is taken: its cgroup tells the live figures. */
  readonly onMachine: (machine: Machine) => void;
  readonly laps: Laps;
}

/**
 * Runs the command of an instance in a machine of its own. The machine is gone when this returns, throws
 * or is aborted.
 * @throws ApiError with the cause when the guest or the host failed; the reason of `signal`
 */
export async function execute(tools: InstanceTools, job: InstanceJob, signal: AbortSignal): Promise<InstanceOutcome> {
  await using ready = await tools.machines.take(job.submission.resources, signal);
  tools.laps.lap("clone");
  tools.onMachine(ready.machine);
  const progress = { begun: false };
  try {
    return await inMachine(ready, signal, () => runIn(ready, tools, job, progress));
  } catch (error) {
    throw progress.begun ? await withFigures(error, ready.machine) : error;
  }
}

/** The error, with what the command had used when it was cut off: the machine's figures, the only ones left. */
async function withFigures(error: unknown, { cgroup }: Machine): Promise<unknown> {
  if (!(error instanceof ApiError)) return error;
  const { cpuTimeMs, memoryPeakBytes } = await cgroup.stats();
  const figures = { cpu_time_ms: cpuTimeMs, memory_bytes: memoryPeakBytes };
  return new ApiError(error.code, error.message, { ...error.details, ...figures }, { cause: error });
}

async function runIn(
  ready: ReadyMachine,
  tools: InstanceTools,
  job: InstanceJob,
  progress: { begun: boolean },
): Promise<InstanceOutcome> {
  const { machine, agent, isolation } = ready;
  const { submission } = job;
  const scratchPath = join(machine.directory, "S");
  await tools.scratchDisks.stamp(submission.resources.diskBytes, scratchPath);
  const steps = prepare(ready, tools, job, scratchPath);
  const run = await runCommand(ready, job, { steps, laps: tools.laps, progress });
  if (run.exit === null || submission.disposable) return { ...run.outcome, isolation, layer: null, captured: false };
  const paths = { disk: scratchPath, parentIndex: job.parentIndex };
  const layer = await captureScratch(tools, { machine, agent }, paths);
  return { ...run.outcome, isolation, layer, captured: true };
}

interface Step {
  readonly phase: Phase;
  readonly name: string;
  readonly done: Promise<void>;
  readonly limitMs: number;
}

/**
 * Begins everything that comes before the command, in one burst: the agent works requests off in order, waits
 * for the disks by itself, and after a failed step the later ones fail too.
 */
function prepare(
  { machine, agent }: ReadyMachine,
  tools: InstanceTools,
  { layerDisks: layers, submission }: InstanceJob,
  scratchPath: string,
): Step[] {
  const disks = [...layerDisks(layers), { serial: "S", path: scratchPath, readOnly: false }];
  const steps: Step[] = [
    { phase: "attach", name: "attaching the disks", done: machine.attach(disks), limitMs: MOUNT_MS_MAX },
    {
      phase: "mount",
      name: "mounting the image",
      done: agent.mount({ layers: layers.length, scratch: true }),
      limitMs: MOUNT_MS_MAX,
    },
  ];
  for (const file of submission.files) {
    const done = agent
      .putFile({
        path: parseGuestPathText(file.path),
        mode: file.mode,
        sizeBytes: file.sizeBytes,
        content: openedWhenRead(() => blobStream(tools.layout, file.sha256)),
      })
      .catch((error: unknown) => rethrowPathError(error, file.path, ERRNOS_OF_PLACING));
    const limitMs = PUT_MS_MAX + Math.ceil(file.sizeBytes / 1_048_576) * PUT_MS_PER_MIB;
    steps.push({ phase: "files", name: `placing ${file.path}`, done, limitMs });
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

interface Preparation {
  readonly steps: readonly Step[];
  readonly laps: Laps;
  readonly progress: { begun: boolean };
}

type RunFigures = Omit<InstanceOutcome, "isolation" | "layer" | "captured">;

async function runCommand(
  { machine, agent }: ReadyMachine,
  job: InstanceJob,
  { steps, laps, progress }: Preparation,
): Promise<{ exit: AgentExit | null; outcome: RunFigures }> {
  const { submission } = job;
  const stdout = new OutputCapture(submission.truncateOutputAtBytes);
  const stderr = new OutputCapture(submission.truncateOutputAtBytes);
  const timeoutMs = submission.timeoutSeconds * 1000;
  const handle = agent.exec(execSpec(job), (stream, chunk) => (stream === "stdout" ? stdout : stderr).push(chunk));
  // These settle when the agent is lost, whichever is being waited for.
  handle.exit.catch(() => undefined);
  handle.started.catch(() => undefined);
  for (const [index, { phase, name, done, limitMs }] of steps.entries()) {
    await withDeadline(done, limitMs, name);
    // All files together are one step.
    if (steps[index + 1]?.phase !== phase) laps.lap(phase);
  }
  const started = handle.started.catch((error: unknown) => rethrowPathError(error, submission.cwd, ERRNOS_OF_ENTERING));
  await withDeadline(started, START_MS_MAX, "starting the command");
  progress.begun = true;
  // Its final word may not come in time: the command may have starved the agent.
  const exit = await withinTime(handle.exit, timeoutMs + EXIT_GRACE_MS, () => null);
  laps.lap("exec");
  if (exit === null) {
    const host = await machine.cgroup.stats();
    const figures = { cpuTimeMs: host.cpuTimeMs, memoryBytes: host.memoryPeakBytes };
    const outcome = { exitCode: SIGKILL_EXIT_CODE, timedOut: true, oomKilled: false, ...figures, stdout, stderr };
    return { exit, outcome };
  }
  const { exitCode, timedOut, oomKilled } = exit;
  const cpuTimeMs = Number(exit.cpuTimeUs / 1000n);
  const memoryBytes = Number(exit.memoryPeakBytes);
  return { exit, outcome: { exitCode, timedOut, oomKilled, cpuTimeMs, memoryBytes, stdout, stderr } };
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
