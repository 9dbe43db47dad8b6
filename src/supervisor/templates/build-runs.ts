import type { Database } from "../../db/database.ts";
import { getImage, type ImageRow } from "../../db/images/images.ts";
import { getOperation } from "../../db/operations.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import { Spid } from "../../domain/log-event.ts";
import { isTerminal, type StoredInstanceResult } from "../../domain/operation.ts";
import { OUTPUT_BYTES_DEFAULT } from "../../domain/output.ts";
import { checkArguments, checkPath, type InstanceSubmission, type SubmittedFile } from "../../domain/spawn.ts";
import { type BuildLog, OutputLines } from "../../domain/templates/build-log.ts";
import type { BuildState } from "../../domain/templates/steps.ts";
import type { EventLogs } from "../../storage/events/event-logs.ts";
import { instanceKind } from "../kinds/instance.ts";
import { CANCELLED } from "../operations/failures.ts";
import type { OperationsPort } from "../operations/ports.ts";

/** A wait without a limit of its own, in `milliseconds`. */
const FOREVER_MS = 2_147_483_647;

export interface BuildRunsOptions {
  readonly db: Database;
  readonly operations: Pick<OperationsPort, "submit" | "cancel" | "waitForEnd">;
  readonly eventLogs: Pick<EventLogs, "read">;
}

/** The part of the runs of one build that is the same for all of them. */
export interface RunSetting extends Pick<InstanceSubmission, "network" | "resources"> {
  readonly accountId: AccountId;
  readonly log: BuildLog;
  /** ends runs */
  readonly signal: AbortSignal;
}

/** A run of a build: shell text, and its arguments. */
export interface BuildRun {
  /** name of the step whose output it is */
  readonly step: string;
  readonly image: ImageRow;
  readonly script: string;
  readonly args: readonly string[];
  readonly state: BuildState;
  /** true: the run is the root's, in the root directory */
  readonly asRoot: boolean;
  readonly files?: readonly SubmittedFile[];
  readonly timeoutSeconds: number;
  /** true: it makes no image */
  readonly isTrial?: boolean;
}

export interface EndedRun {
  readonly exitCode: number;
  readonly timedOut: boolean;
  /** of a trial: the one on which it ran */
  readonly image: ImageRow;
}

/** Runs commands of a build as ordinary instances, whose output goes to the log of the build as it comes. */
export class BuildRuns {
  readonly #options: BuildRunsOptions;
  readonly #setting: RunSetting;

  constructor(options: BuildRunsOptions, setting: RunSetting) {
    this.#options = options;
    this.#setting = setting;
  }

  /** @throws ApiError of an operation that did not succeed; the reason of the signal */
  async run(run: BuildRun): Promise<EndedRun> {
    const { db, operations } = this.#options;
    const { accountId } = this.#setting;
    const { id } = await operations.submit(accountId, instanceKind, this.#submission(run));
    const result = (await this.ended(id, run.step)) as unknown as StoredInstanceResult;
    const image = result.image === undefined ? run.image : getImage(db, accountId, result.image as ImageId);
    if (image === null) throw new ApiError("conflict", "the image of the step was deleted");
    return { exitCode: result.exit_code, timedOut: result.timed_out, image };
  }

  /** The result of an operation when it has ended. @param step the step that gets its output; null: it has none */
  async ended(id: OperationId, step: string | null): Promise<Record<string, unknown>> {
    const { db, operations } = this.#options;
    const { accountId, signal } = this.#setting;
    const output = step === null ? Promise.resolve() : this.#follow(id, step);
    const cancel = () => void operations.cancel(accountId, id);
    signal.addEventListener("abort", cancel, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", cancel) };
    if (signal.aborted) cancel();
    await operations.waitForEnd(id, FOREVER_MS, signal);
    await output;
    signal.throwIfAborted();
    const row = getOperation(db, accountId, id);
    if (row === null || !isTerminal(row.status)) throw new ApiError("unavailable", "the service is stopping");
    if (row.status === "CANCELLED") throw CANCELLED;
    if (row.error !== null) throw new ApiError(row.error.error, row.error.message, row.error.details);
    return row.result ?? {};
  }

  #submission(run: BuildRun): InstanceSubmission {
    const { script, args, state, asRoot, isTrial = false, image, files = [], timeoutSeconds } = run;
    const { network, resources } = this.#setting;
    const { user, cwd, env } = state;
    const argv = ["/bin/sh", "-c", script, "/bin/sh", ...args];
    checkArguments(argv, env, true);
    return {
      ...(asRoot
        ? { cwd: "/", isCwdGiven: true }
        : { cwd: checkPath(cwd ?? "/", "WORKDIR"), isCwdGiven: cwd !== null, user }),
      ...{ uid: 0, gid: 0, shell: true, env, unset: [], inherit: false, hostname: null, tag: null },
      argv,
      ...{ truncateOutputAtBytes: OUTPUT_BYTES_DEFAULT, stdin: null, stdinOpen: false, terminal: null },
      ...{ preserveEnv: true, preserveCwd: false, disposable: isTrial, requestedAt: null },
      ...{ imageId: image.id, files, network, resources, timeoutSeconds },
    };
  }

  /** Passes the output of a run on to the log, until the run ends. Never throws: the build continues without its output. */
  async #follow(id: OperationId, step: string): Promise<void> {
    const { eventLogs } = this.#options;
    const { accountId, log, signal } = this.#setting;
    const lines = {
      stdout: new OutputLines((line) => log.output(step, line)),
      stderr: new OutputLines((line) => log.output(step, line)),
    };
    try {
      using reader = eventLogs.read(accountId, id, -1, false);
      for (;;) {
        const { isOver } = reader;
        const events = await reader.next();
        for (const { spid, type, payload } of events) {
          if (spid === Spid.command && (type === "stdout" || type === "stderr")) lines[type].take(payload);
        }
        if (events.length > 0) continue;
        if (isOver) break;
        await reader.changed(signal);
      }
    } catch (error) {
      if (!signal.aborted) log.say(step, `the output cannot be read: ${(error as Error).message}`, "warn");
    }
    for (const stream of Object.values(lines)) stream.end();
  }
}
