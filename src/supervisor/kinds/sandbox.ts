import { findSandbox } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import type { ImageId, SandboxId } from "../../domain/ids.ts";
import type { StoredSandboxResult } from "../../domain/operation.ts";
import type { SaveReason } from "../../domain/sandbox.ts";
import type { CheckedFile, InstanceRequest, InstanceSubmission } from "../../domain/spawn.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { LogSummary } from "../../storage/events/log-summary.ts";
import type { InstanceOutcome } from "../instance/execute.ts";
import type { NumbersOptions } from "../instance/instance-process.ts";
import { type InstanceContext, rowsOf, runOnImage } from "../instance/run-instance.ts";
import type { OperationRef } from "../operations/changes.ts";
import type { Kind } from "../operations/kind.ts";
import { jsonBytes, requestGone } from "../operations/requests.ts";
import { costOf, sandboxCostOf } from "../operations/scheduler.ts";
import { prepared, type Worker } from "../operations/work.ts";

/** A validated instance of a sandbox. */
export interface SandboxRun extends Pick<InstanceSubmission, "imageId" | "files" | "network" | "resources"> {
  readonly sandboxId: SandboxId;
  readonly hostname: string;
}

/** How the instance of a sandbox ends: its files are given up, or saved. */
export type SandboxEnding = "discard" | { readonly reason: SaveReason; readonly tag: string | null };

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
  /** To be called when the machine runs. @throws ApiError `conflict` when the sandbox no longer needs it */
  started(): void;
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
      return costOf(resources);
    },
    prepare: async (operation, { sandboxId, ...run }, work) => {
      const { db, lives } = context;
      await using stack = new AsyncDisposableStack();
      await using life = await lives.begin(operation, sandboxId);
      const { outcome, image, defaults, hadNetwork } = await runOnImage(context, operation, {
        submission: { ...NO_COMMAND, ...run },
        work: { ...work, signal: AbortSignal.any([work.signal, life.abort]) },
        stack,
        // The network may have changed since the operation was submitted.
        policy: () => findSandbox(db, sandboxId)?.network ?? null,
        idle: {
          numbers: life.numbers,
          processEvents: life.events,
          summary: life.events.summary,
          onStarted: () => {
            if (work.left === undefined) life.started();
            else life.continued();
            work.reduceCost(sandboxCostOf(run.resources));
          },
          isCaptured: ({ oomKilled }) => endingOf(life, oomKilled) !== "discard",
        },
      });
      const ending = endingOf(life, false);
      if (ending === "discard" || !outcome.captured)
        return prepared(stack, { result: resultOf(outcome) }, () => undefined);
      const { reason, tag } = ending;
      // A tag gets its own image: the head must not lose its tag.
      const isOwn = outcome.layer !== null || tag !== null || findSandbox(db, sandboxId)?.headId !== image.id;
      const id = Bun.randomUUIDv7() as ImageId;
      const rows = isOwn
        ? rowsOf(outcome.layer, { id, parent: image, defaults, origin: sandboxOrigin(run, hadNetwork) })
        : {};
      const result = resultOf(outcome, { image: isOwn ? id : image.id, ...given({ tag }) });
      const sandbox = { id: sandboxId, instance: operation.id, reason, isPaused: true };
      return prepared(stack, { result, ...rows, ...given({ tag }), sandbox }, () => outcome.layer?.keep());
    },
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
