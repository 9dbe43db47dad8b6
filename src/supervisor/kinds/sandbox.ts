import { join } from "node:path";
import { findSandbox } from "../../db/sandboxes/rows.ts";
import type { RequestedResources } from "../../db/schema.ts";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import type { ImageId, MemoryImageId, SandboxId } from "../../domain/ids.ts";
import type { StoredSandboxResult } from "../../domain/operation.ts";
import type { SaveReason } from "../../domain/sandbox.ts";
import type { CheckedFile, InstanceRequest, InstanceSubmission } from "../../domain/spawn.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { LogSummary } from "../../storage/events/log-summary.ts";
import { continueCopy } from "../../vm/copy-agent.ts";
import type { InstanceOutcome, ResumedInstance } from "../instance/execute.ts";
import type { NumbersOptions } from "../instance/instance-process.ts";
import { type InstanceContext, rowsOf, runOnImage } from "../instance/run-instance.ts";
import type { ResumableInstance } from "../instance/running-instances.ts";
import type { ForkedMachines, MachineSource } from "../machines/machine-source.ts";
import { layerSerial, SCRATCH_SERIAL } from "../machines/steps.ts";
import type { KeptMemory, MemoryImages } from "../memory/memory-images.ts";
import type { OperationRef } from "../operations/changes.ts";
import type { Kind } from "../operations/kind.ts";
import { jsonBytes, requestGone } from "../operations/requests.ts";
import { type Cost, costOf, sandboxCostOf } from "../operations/scheduler.ts";
import { prepared, type Worker } from "../operations/work.ts";

/** A validated instance of a sandbox. */
export interface SandboxRun extends Pick<InstanceSubmission, "imageId" | "files" | "network" | "resources"> {
  readonly sandboxId: SandboxId;
  readonly hostname: string;
  /** kept memory with which it continues; `imageId` is the image that its machine began with */
  readonly memoryImageId?: MemoryImageId | undefined;
}

/** How the instance of a sandbox ends: its files are given up, or saved. */
export type SandboxEnding = "discard" | SavingEnd;

/** The end of an instance whose files are saved. */
export interface SavingEnd {
  readonly reason: SaveReason;
  readonly tag: string | null;
  /** the memory at the moment whose files are saved; absent: it is given up */
  readonly memory?: Pick<KeptMemory, "image" | "record"> | undefined;
}

/** The present instance of a sandbox, on which requests for the sandbox act. Disposal: its machine is gone. */
export interface SandboxLife extends AsyncDisposable {
  /** the log of the sandbox */
  readonly events: EventLog & { readonly summary: LogSummary };
  /** of its processes */
  readonly numbers: NumbersOptions;
  /** ends the machine at once; the reason is an ApiError */
  readonly abort: AbortSignal;
  /** null: no request ends it */
  readonly ending: SandboxEnding | null;
  /** resolves when a request ends it and keeps its memory */
  readonly suspended: Promise<ResumableInstance>;
  /**
   * To be called when the machine runs.
   * @param memory true: it continues with kept memory; default: false
   * @throws ApiError `conflict` when the sandbox no longer needs it
   */
  started(memory?: boolean): void;
  /** To be called instead when a machine of a former process is continued. @throws as `started` does */
  continued(): void;
}

/** The instances of sandboxes. */
export interface SandboxLives {
  /** @throws ApiError `conflict` when the sandbox no longer needs the instance */
  begin(operation: OperationRef, id: SandboxId): Promise<SandboxLife>;
}

export interface SandboxContext extends InstanceContext {
  readonly lives: SandboxLives;
  readonly memory: Pick<MemoryImages, "open">;
  readonly machines: MachineSource & Pick<ForkedMachines, "cloneFork">;
}

/** The fields of a command that an instance without one does not have. */
const NO_COMMAND = {
  ...{ argv: ["idle"], shell: false, env: {}, unset: [], inherit: false, cwd: "/", isCwdGiven: true },
  ...{ uid: 0, gid: 0, truncateOutputAtBytes: 0, stdin: null, stdinOpen: false, terminal: null },
  ...{ timeoutSeconds: 0, requestedAt: null, disposable: false, tag: null, preserveEnv: false, preserveCwd: false },
} as const satisfies Partial<InstanceRequest>;

/** Does the work of sandboxes: keeps a machine until a request ends it, and captures its files as the image to publish. */
function sandboxWorker(context: SandboxContext): Worker<SandboxRun, SandboxRun> {
  return {
    cost: (resources) => {
      if (resources === null) throw new Error("a sandbox without resources");
      return withImage(costOf(resources), resources);
    },
    prepare: async (operation, { sandboxId, memoryImageId, ...run }, work) => {
      const { db, lives } = context;
      await using stack = new AsyncDisposableStack();
      await using life = await lives.begin(operation, sandboxId);
      const memory = memoryImageId === undefined ? null : { sandboxId, id: memoryImageId };
      const { outcome, image, defaults, hadNetwork } = await runOnImage(context, operation, {
        submission: { ...NO_COMMAND, ...run },
        work: { ...work, signal: AbortSignal.any([work.signal, life.abort]) },
        stack,
        // The network may have changed since the operation was submitted.
        policy: () => findSandbox(db, sandboxId)?.network ?? null,
        ...(memory === null ? {} : { resumed: (signal) => continued(context, memory, stack, signal) }),
        idle: {
          numbers: life.numbers,
          processEvents: life.events,
          summary: life.events.summary,
          suspended: life.suspended,
          onStarted: () => {
            if (work.left === undefined) life.started(memory !== null);
            else life.continued();
            work.reduceCost(withImage(sandboxCostOf(run.resources), run.resources));
          },
          isCaptured: ({ oomKilled }) => endingOf(life, oomKilled) !== "discard",
        },
      });
      const ending = endingOf(life, false);
      if (ending === "discard" || !outcome.captured)
        return prepared(stack, { result: resultOf(outcome) }, () => undefined);
      const { reason, tag, memory: kept } = ending;
      // A tag gets its own image: the head must not lose its tag.
      const isOwn = outcome.layer !== null || tag !== null || findSandbox(db, sandboxId)?.headId !== image.id;
      const id = Bun.randomUUIDv7() as ImageId;
      const rows = isOwn
        ? rowsOf(outcome.layer, { id, parent: image, defaults, origin: sandboxOrigin(run, hadNetwork) })
        : {};
      const result = resultOf(outcome, { image: isOwn ? id : image.id, ...given({ tag }) });
      const sandbox = {
        id: sandboxId,
        instance: operation.id,
        reason,
        isPaused: true,
        ...given({ memory: kept?.image }),
      };
      return prepared(stack, { result, ...rows, ...given({ tag }), sandbox }, () => outcome.layer?.keep());
    },
  };
}

/** The cost of a machine, with the memory that it continues from. */
function withImage(cost: Cost, { memoryImageBytes = 0 }: RequestedResources): Cost {
  return { ...cost, memoryBytes: cost.memoryBytes + memoryImageBytes };
}

/**
 * A paused machine with kept memory, and its instance. Until it runs, the kept memory stays whole. From then on there is none:
 * it would continue a second time from a moment that has passed.
 * @param stack gets what the machine needs
 */
async function continued(
  { memory, machines }: SandboxContext,
  { sandboxId, id }: { readonly sandboxId: SandboxId; readonly id: MemoryImageId },
  stack: AsyncDisposableStack,
  signal: AbortSignal,
): Promise<ResumedInstance> {
  const { point, record, disks, consume } = stack.use(await memory.open(sandboxId, id, signal));
  const copy = await machines.cloneFork(point, disks, signal);
  const { machine } = copy;
  return {
    record: movedRecord(record, machine.directory),
    machine: copy,
    outlives: "at_once",
    continueAgent: (from, options) => {
      consume();
      return continueCopy(machine, from, { ...options, signal });
    },
    // The programs see that their connections are reset.
    onResumed: (_instance, connections) => {
      for (const connection of connections) connection.reset();
    },
  };
}

/** The record with the paths of the disks in the directory of a machine. */
function movedRecord({ instance, ...rest }: ResumableInstance, directory: string): ResumableInstance {
  const scratchPath = join(directory, SCRATCH_SERIAL);
  const layers = (instance.disks?.layers ?? []).map((_, index) => join(directory, layerSerial(index)));
  return {
    ...rest,
    scratchPath,
    instance: { ...instance, disks: { layers, scratch: { path: scratchPath, use: "root" } } },
  };
}

/** How images of a sandbox are made. */
export function sandboxOrigin({ hostname }: Pick<SandboxRun, "hostname">, network: boolean) {
  return { command: ["sandbox", hostname], network };
}

/** @throws ApiError `unavailable` when no request has ended the instance */
function endingOf({ ending }: SandboxLife, oomKilled: boolean): SandboxEnding {
  if (ending !== null) return ending;
  const message = oomKilled ? "the guest ran out of memory" : "the machine of the sandbox ended by itself";
  throw new ApiError("unavailable", message, oomKilled ? { oom_killed: true } : {});
}

function resultOf(
  { cpuTimeMs, memoryBytes, isolation }: InstanceOutcome,
  kept: Pick<StoredSandboxResult, "image" | "tag"> = {},
): StoredSandboxResult {
  return { cpu_time_ms: cpuTimeMs, memory_bytes: memoryBytes, ...kept, isolation };
}

/** The part of a request that is not in a column of its own. */
export type SandboxBody = Omit<SandboxRun, "resources">;

/** The request of a sandbox's instance, as clients can read it. */
export interface KeptSandbox extends Omit<SandboxBody, "files"> {
  readonly kind: "sandbox";
  readonly files: readonly CheckedFile[];
  readonly resources: SandboxRun["resources"] | null;
}

export const sandboxKind: Kind<SandboxRun, SandboxRun, KeptSandbox, SandboxContext> = {
  name: "sandbox",
  store({ resources, ...body }) {
    const fileIds = body.files.map(({ fileId }) => fileId);
    const row = { body, resources, sizeBytes: jsonBytes(body), fileIds };
    return { row, stdin: null, credentials: null, imageId: body.imageId };
  },
  read({ body, resources }) {
    if (resources === null) throw requestGone();
    return { ...(body as SandboxBody), resources };
  },
  kept({ body, resources }) {
    const { files, ...rest } = body as SandboxBody;
    const placed = files.map(({ sha256: _hash, sizeBytes: _size, ...file }) => file);
    return { ...rest, kind: "sandbox", files: placed, resources };
  },
  worker: sandboxWorker,
};
