import type { LayerId, OperationId } from "../../domain/ids.ts";
import type { ImageDefaults } from "../../domain/image-defaults.ts";
import type { Phase } from "../../domain/operation.ts";
import type { InstanceRequest } from "../../domain/spawn.ts";
import { parseGuestPathText } from "../../domain/tree/guest-path.ts";
import type { Log } from "../../log.ts";
import { blobStream } from "../../storage/blobs.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { LogSummary } from "../../storage/events/log-summary.ts";
import type { LayerChain } from "../../storage/layers/layer-store.ts";
import type { AgentExecSpec } from "../../vm/agent/agent.ts";
import { prepareMs } from "../machines/guest-budgets.ts";
import { rethrowPathError } from "../machines/guest-errors.ts";
import { GuestTime } from "../machines/guest-time.ts";
import type { MachineSource } from "../machines/machine-source.ts";
import type { ScratchDisks } from "../machines/scratch-disks.ts";
import { createScratch } from "../machines/steps.ts";
import type { InstanceNetwork } from "../network/instance-network.ts";
import type { InstanceKeeper, KeptFacts } from "./adoption/instance-keeper.ts";
import type { CaptureTools } from "./capture.ts";
import { execSpec } from "./exec-spec.ts";
import type { NumbersOptions } from "./instance-process.ts";
import type { ProcessLog } from "./process-log.ts";
import type { RunningInstance } from "./running-instance.ts";
import type { ResumableInstance, RunningInstances, StartedInstance } from "./running-instances.ts";
import type { TimeLimit } from "./time-limit.ts";

export interface InstanceJob {
  readonly operationId: OperationId;
  readonly submission: InstanceRequest;
  /** the layers to attach; merged layers may replace those of the image */
  readonly image: LayerChain;
  /** host path of the index of the image's own top layer */
  readonly parentIndex: string;
  /** that layer; absent: as in `FinishedInstance` */
  readonly parentLayer?: LayerId;
  /** those of the image */
  readonly defaults: ImageDefaults;
  /** the job of a sandbox, which has no command; null: the instance runs the command of its request */
  readonly idle?: IdleJob | undefined;
}

/** The job of an instance that lasts until a request ends it. */
export interface IdleJob {
  readonly numbers: NumbersOptions;
  /** the log of the processes that run in it */
  readonly processEvents: EventLog;
  /** of that log until now */
  readonly summary?: LogSummary | undefined;
  /** resolves when the processes are to continue later from this record, which has their memory with it */
  readonly suspended: Promise<ResumableInstance>;
  /** Called when the instance runs. @throws when it must not */
  readonly onStarted: () => void;
  /** Decides at the end whether its files are captured. @throws ApiError when it has ended by itself */
  readonly isCaptured: (end: { readonly oomKilled: boolean }) => boolean;
}

/** A job with the log of its command. */
export interface LoggedJob extends InstanceJob {
  readonly commandLog: ProcessLog;
}

export interface InstanceTools extends CaptureTools {
  readonly machines: MachineSource;
  readonly scratchDisks: ScratchDisks;
  readonly log: Log;
  /** registers the instance while it has a machine */
  readonly instances: RunningInstances;
  readonly events: EventLog;
  readonly network: InstanceNetwork;
  /** called with the number of connections that a guest without a network tried to open */
  readonly uninvited: (count: number) => void;
  /** keeps the record with which the instance outlives the service; absent: it ends with the service */
  readonly keeper?: InstanceKeeper | undefined;
}

const ATTACHING = "attaching the disks";

/** Prepares the guest, and starts the command in it. */
export async function start(
  instance: RunningInstance,
  tools: InstanceTools,
  job: LoggedJob,
  limit: TimeLimit,
): Promise<StartedInstance> {
  const { laps } = tools;
  const { isolation } = instance;
  const scratchPath = await createScratch(instance, tools.scratchDisks, job.submission.resources.diskBytes);
  tools.diskUse.add(scratchPath);
  const time = new GuestTime({ allowedMs: prepareMs });
  const steps = prepare(instance, tools, { job, scratchPath, time });
  const timeoutMs = limit.begin();
  if (tools.keeper !== undefined) {
    // The record has the disks. It must be there before a program can run.
    await time.wait(ATTACHING, steps[0]?.done ?? Promise.resolve());
    await tools.keeper.keep(instance.machine, () => keptFacts(job, { limit, isolation, network: tools.network }));
  }
  const spec = specOf(job, timeoutMs);
  // The log has the limit that was requested.
  const command = instance.start(spec, job.commandLog.sink({ ...spec, timeoutMs: limit.ms }));
  for (const [index, { phase, name, done }] of steps.entries()) {
    await time.wait(name, done);
    // All files together are one step.
    if (steps[index + 1]?.phase !== phase) laps.lap(phase);
  }
  await time.wait("starting the command", command.started);
  return { scratchPath, startedAt: performance.now() };
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
  }: { readonly job: InstanceJob; readonly scratchPath: string; readonly time: GuestTime },
): Step[] {
  const { attached, mounted } = instance.attach({
    layers: image.files.map(({ disk }) => disk),
    scratch: { path: scratchPath, use: "root" },
  });
  const steps: Step[] = [
    { phase: "attach", name: ATTACHING, done: attached },
    { phase: "mount", name: "mounting the image", done: mounted },
  ];
  if (tools.network.policy !== null) {
    const done = instance.agent.network(tools.network);
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
    // The steps are awaited in order. A later step fails because an earlier one did: report the earlier failure.
    done.catch(() => undefined);
    steps.push({ phase: "files", name: `placing ${file.path}`, done });
  }
  return steps;
}

/** Opens the stream when its first chunk is read: an instance may have a thousand files, each with a descriptor. */
async function* openLazily(open: () => AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  yield* open();
}

interface KeptParts extends Pick<KeptFacts, "isolation" | "generation" | "resumed"> {
  readonly limit: TimeLimit;
  readonly network: InstanceNetwork;
  /** default: that of the job */
  readonly hostname?: string;
}

/** The part of the record of an instance that its machine does not have. */
export function keptFacts(
  job: InstanceJob,
  { limit, network, hostname = hostnameOf(job), ...machine }: KeptParts,
): KeptFacts {
  const { operationId, submission, image, idle } = job;
  return {
    ...{ operationId, kind: idle === undefined ? "instance" : "sandbox", imageId: submission.imageId },
    ...{ layers: image.ids, hostname, limit: limit.record(), network: network.record(), ...machine },
  };
}

/** @param timeoutMs time limit from the start, in `milliseconds` */
export function specOf(job: LoggedJob, timeoutMs: number): AgentExecSpec {
  const { stdin, ...command } = job.submission;
  const counted = stdin === null ? null : job.commandLog.counting(stdin());
  const { defaults, idle } = job;
  const spec = execSpec(command, { hostname: hostnameOf(job), timeoutMs, defaults, stdin: counted });
  return idle === undefined ? spec : { ...spec, isIdle: true };
}

/** The hostname of an instance, as its command sees it. */
export function hostnameOf({ operationId, submission }: InstanceJob): string {
  // A version 7 UUID starts with the time; its last 12 digits are random.
  return submission.hostname ?? `coppice-${operationId.slice(-12)}`;
}
