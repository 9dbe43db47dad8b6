import { deleteImage } from "../../db/removal.ts";
import { deleteBuildsBefore, endBuild, failInterruptedBuilds, forgetLogsBefore } from "../../db/templates/builds.ts";
import { forgetBuildFilesBefore, forgetStepsUnusedSince, isLeftOver, keepStep } from "../../db/templates/cache.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, ImageId } from "../../domain/ids.ts";
import { BuildLog, type BuildLogEntry } from "../../domain/templates/build-log.ts";
import { FINALIZE_STEP } from "../../domain/templates/steps.ts";
import type { Log } from "../../log.ts";
import { ownTurn } from "../../system/turns.ts";
import { sleepUnlessAborted } from "../../system/waiting.ts";
import type { AccountChanges } from "../account-changes.ts";
import { releaseImage } from "../reclaim.ts";
import { Build, BuildError, type BuildSubmission, type BuildTools } from "./build.ts";

/** How long the image after a step is kept after its last use, and an uploaded archive after its upload, in `milliseconds`. */
const STEP_TTL_MS = 7 * 86_400_000;
/** How long a build that no tag names is kept, and the log of any, in `milliseconds`. */
const BUILD_TTL_MS = 7 * 86_400_000;
/** Time between two passes that remove both, in `milliseconds`. */
const PASS_INTERVAL_MS = 3_600_000;
/** Rows that one transaction removes: it must not block the event loop. */
const BATCH_COUNT = 20;
/** Lines of the log that the reason of a failure repeats. */
const REASON_LINES_COUNT = 20;

/** Time between two attempts to record the end of a build, in `milliseconds`. */
const RECORD_PAUSE_MS = 1000;

const RESTARTED = { message: "the service was restarted during the build", step: "base" };
const STOPPED = new ApiError("unavailable", "the service stopped during the build");
const DELETED = new ApiError("conflict", "the template was deleted during the build");

export interface BuildsOptions extends Omit<BuildTools, "drop"> {
  readonly accounts: Accounts;
  readonly changes: AccountChanges;
  readonly log: Log;
}

/** A build of this process that has not ended. */
interface ActiveBuild {
  readonly accountId: AccountId;
  readonly log: BuildLog;
  readonly abort: AbortController;
  readonly work: Promise<void>;
}

/** The interface of builds for use cases. */
export interface BuildsPort {
  /**
   * Begins a build.
   * @param begin takes its row to `building`; called when the account has room for the build
   * @throws ApiError `too_many_requests`, `unavailable`; as `begin` does
   */
  start(submission: BuildSubmission, begin: () => void): void;
  /** The log of a build that has not ended; null for any other. The array grows. */
  log(id: string): readonly BuildLogEntry[] | null;
  /** Ends a build, if it runs. Its row may be gone. */
  cancel(id: string): void;
  /** Deletes the image if neither a tag, a build nor a kept step names it: now, or later if something uses it. */
  drop(accountId: AccountId, id: ImageId): Promise<void>;
}

/** Runs builds of templates. Their steps are operations, which wait for their turn as any others. */
export class Builds implements BuildsPort, AsyncDisposable {
  readonly #options: BuildsOptions;
  readonly #active = new Map<string, ActiveBuild>();
  readonly #stopped = new AbortController();
  #pass: Promise<void> = Promise.resolve();
  #timer: Timer | undefined;

  constructor(options: BuildsOptions) {
    this.#options = options;
  }

  /** Fails the builds that a former process left, and begins to remove every hour what no build has used for long. */
  recover(): void {
    const { db, clock, log } = this.#options;
    const ids = failInterruptedBuilds(db, RESTARTED, clock());
    if (ids.length > 0) log.warn("builds ended with the former process", { count: ids.length });
    this.#timer = setInterval(() => {
      this.#pass = this.#pass.then(() => this.expire());
    }, PASS_INTERVAL_MS);
  }

  start(submission: BuildSubmission, begin: () => void): void {
    const { accounts, clock } = this.#options;
    if (this.#stopped.signal.aborted) throw STOPPED;
    using undo = new DisposableStack();
    undo.use(accounts.take(submission.accountId, "builds"));
    begin();
    const place = undo.move();
    const { id, accountId } = submission;
    const abort = new AbortController();
    const log = new BuildLog(clock);
    const work = this.#run(submission, log, abort.signal).then(() => {
      this.#active.delete(id);
      place.dispose();
    });
    this.#active.set(id, { accountId, log, abort, work });
  }

  log(id: string): readonly BuildLogEntry[] | null {
    return this.#active.get(id)?.log.entries ?? null;
  }

  cancel(id: string): void {
    this.#active.get(id)?.abort.abort(DELETED);
  }

  async drop(accountId: AccountId, id: ImageId): Promise<void> {
    const { db, changes, clock } = this.#options;
    if (!isLeftOver(db, accountId, id)) return;
    const outcome = deleteImage(db, accountId, id);
    // It is tried again when images of steps that were last used now are deleted.
    if (outcome === "in_use") keepStep(db, { accountId, key: `left-${id}`, imageId: id, now: clock() });
    if (typeof outcome === "string") return;
    changes.report(accountId, { type: "deleted", id });
    await releaseImage(this.#options, { id, layerId: outcome.deleted }, accountId);
  }

  /** Ends all builds. */
  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    this.#stopped.abort();
    for (const { abort } of this.#active.values()) abort.abort(STOPPED);
    await Promise.all([...this.#active.values()].map(({ work }) => work));
    await this.#pass;
  }

  /** Runs a build to its end, which it records. Never throws. */
  async #run(submission: BuildSubmission, log: BuildLog, signal: AbortSignal): Promise<void> {
    const { db, clock, log: serviceLog } = this.#options;
    const { id, accountId } = submission;
    const tools = { ...this.#options, drop: (account: AccountId, image: ImageId) => this.drop(account, image) };
    const end = await this.#outcome(new Build(tools, submission, log, signal), id, log);
    if ("reason" in end) log.say(end.reason.step, end.reason.message, "error");
    else log.say(FINALIZE_STEP, "Build finished");
    // A full disk, for example, must not leave a build that never ends. The next start ends one that is left now.
    for (;;) {
      try {
        const hasRow = endBuild(db, id, end, { log: log.entries, now: clock() });
        if (!hasRow && "imageId" in end) await this.drop(accountId, end.imageId);
        return;
      } catch (error) {
        serviceLog.error("cannot record the end of a build", { build: id, error });
        if (this.#stopped.signal.aborted) return;
        await sleepUnlessAborted(RECORD_PAUSE_MS, this.#stopped.signal);
      }
    }
  }

  async #outcome(build: Build, id: string, log: BuildLog) {
    try {
      return await build.run();
    } catch (error) {
      const step = error instanceof BuildError ? error.step : FINALIZE_STEP;
      if (!(error instanceof BuildError || error instanceof ApiError)) {
        this.#options.log.error("a build failed unexpectedly", { build: id, error });
        return { reason: { message: "the build failed because of an internal error", step } };
      }
      return { reason: { message: error.message, step, logEntries: log.tail(step, REASON_LINES_COUNT) } };
    }
  }

  /** Removes what no build has used for long. It never throws: a failure is logged, and the next pass tries again. */
  async expire(): Promise<void> {
    const { db, clock, log } = this.#options;
    const { signal } = this.#stopped;
    const [buildsBefore, stepsBefore] = [clock() - BUILD_TTL_MS, clock() - STEP_TTL_MS];
    const removed = async (rows: readonly { readonly accountId: AccountId; readonly imageId: ImageId | null }[]) => {
      for (const { accountId, imageId } of rows) if (imageId !== null) await this.drop(accountId, imageId);
      return rows.length;
    };
    const forget = [
      () => removed(deleteBuildsBefore(db, buildsBefore, BATCH_COUNT)),
      () => removed(forgetStepsUnusedSince(db, stepsBefore, BATCH_COUNT)),
      () => forgetLogsBefore(db, buildsBefore, BATCH_COUNT),
      () => forgetBuildFilesBefore(db, stepsBefore, BATCH_COUNT),
    ];
    try {
      for (const each of forget) {
        while (!signal.aborted && (await each()) === BATCH_COUNT) await ownTurn();
      }
    } catch (error) {
      log.error("cannot remove what builds have left", { error });
    }
  }
}
