import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { CgroupTree } from "../cgroup/cgroup.ts";
import { CREATIONS_TTL_MS, deleteCreationsBefore } from "../db/e2b/creations.ts";
import { deleteOperationsFinishedBefore, existingOperations } from "../db/operations.ts";
import { deleteSandboxesEndedBefore, existingSandboxes } from "../db/sandboxes/rows.ts";
import { deleteEndedWebSessions, SESSION_UNUSED_MS_MAX } from "../db/web-sessions.ts";
import { removeEventLog, sweepEventLogs } from "../storage/events/event-file.ts";
import { removeAbandonedStaging } from "../storage/staging.ts";
import { removeTrees, sweepTemporaries } from "../system/scratch.ts";
import { ownTurn } from "../system/turns.ts";
import { type ReclaimOptions, reclaim, reclaimOrphans, releaseWhenRead, removeBrokenMergedLayers } from "./reclaim.ts";

/** Rows that one transaction removes: it must not block the event loop. */
const BATCH_COUNT = 40;
const PASS_INTERVAL_MS = 3_600_000;
/** Younger temporary files may belong to a command that creates a key while the daemon runs. */
const TEMPORARY_AGE_MS = 3_600_000;

export interface JanitorOptions extends ReclaimOptions {
  /** how long ended operations are kept, in `milliseconds` */
  readonly operationsRetentionMs: number;
}

/**
 * Removes the machines and temporary files of a former process. Nothing else may run yet, because work in progress
 * looks the same.
 * @param kept machines that are continued
 */
export async function sweep(
  { layout, log }: JanitorOptions,
  cgroups: CgroupTree,
  kept: ReadonlySet<string> = new Set(),
): Promise<void> {
  const isLeft = (name: string) => !kept.has(name);
  for (const name of (await cgroups.list()).filter(isLeft)) {
    log.warn("removing the processes of a former daemon", { cgroup: name });
    await cgroups.open(name)[Symbol.asyncDispose]();
  }
  for (const directory of [layout.vms, layout.tmp]) {
    await removeTrees((await readdir(directory)).filter(isLeft).map((name) => join(directory, name)));
  }
  for (const directory of [layout.root, layout.keys]) await sweepTemporaries(directory, TEMPORARY_AGE_MS);
}

/**
 * Removes stored files that no row refers to, in one pass over all of them. Its duration grows with their number, so the
 * API answers reads meanwhile. Disposal stops it.
 */
export class OrphanSweep implements AsyncDisposable {
  readonly #options: JanitorOptions;
  readonly #stopped = new AbortController();
  readonly #ended = Promise.withResolvers<void>();
  #work: Promise<void> = Promise.resolve();

  constructor(options: JanitorOptions) {
    this.#options = options;
  }

  /** Resolves when the pass has ended. Until then no operation may run, and nothing may make layers. */
  get ended(): Promise<void> {
    return this.#ended.promise;
  }

  begin(): void {
    this.#work = this.#run().then(this.#ended.resolve);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort();
    await this.#work;
  }

  async #run(): Promise<void> {
    const { db, layout, layers, log } = this.#options;
    const { signal } = this.#stopped;
    try {
      for (const id of await removeBrokenMergedLayers({ db, layers })) {
        log.warn("removed a merged layer whose files are missing", { layer: id });
      }
      await reclaimOrphans({ db, layout, layers }, { dryRun: false, signal });
      const existing = (ids: readonly string[]) => existingOperations(db, ids).union(existingSandboxes(db, ids));
      await sweepEventLogs(layout, existing, signal);
    } catch (error) {
      if (!signal.aborted) log.error("cannot remove the files that a former process left", { error });
    }
  }
}

/**
 * Removes objects that have passed their retention, now and every hour, and deleted layers as soon as their last reader
 * is done. Disposal stops it.
 */
export function startJanitor(options: JanitorOptions): AsyncDisposable {
  const stopped = new AbortController();
  const releasing = releaseWhenRead(options);
  let pass = expire(options, stopped.signal);
  const timer = setInterval(() => {
    pass = pass.then(() => expire(options, stopped.signal));
  }, PASS_INTERVAL_MS);
  return {
    [Symbol.asyncDispose]: async () => {
      clearInterval(timer);
      stopped.abort();
      await pass;
      await releasing[Symbol.asyncDispose]();
    },
  };
}

/** One pass. It never throws: a failure is logged, and the next pass tries again. */
async function expire(options: JanitorOptions, signal: AbortSignal): Promise<void> {
  try {
    for (const name of await removeAbandonedStaging(options.layout)) {
      options.log.warn("removed the directory of an interrupted backup or restore", { directory: name });
    }
    await expireOperations(options, signal);
    await expireSandboxes(options, signal);
    await expireSessions(options, signal);
    await expireCreations(options, signal);
    if (!signal.aborted) await reclaim(options, { dryRun: false, signal });
  } catch (error) {
    options.log.error("cannot remove expired objects", { error });
  }
}

/** Requests for sandboxes can be repeated for a time only. */
async function expireCreations({ db, clock }: JanitorOptions, signal: AbortSignal): Promise<void> {
  const beforeMs = clock() - CREATIONS_TTL_MS;
  while (!signal.aborted && deleteCreationsBefore(db, beforeMs, BATCH_COUNT) === BATCH_COUNT) await ownTurn();
}

async function expireSessions({ db, clock }: JanitorOptions, signal: AbortSignal): Promise<void> {
  const now = clock();
  const ended = { unusedSince: now - SESSION_UNUSED_MS_MAX, now };
  while (!signal.aborted && deleteEndedWebSessions(db, ended, BATCH_COUNT) === BATCH_COUNT) await ownTurn();
}

/** Ended sandboxes are kept as long as ended operations. */
async function expireSandboxes(options: JanitorOptions, signal: AbortSignal): Promise<void> {
  const { db, layout, clock } = options;
  const beforeMs = clock() - options.operationsRetentionMs;
  for (let full = true; full && !signal.aborted; ) {
    const ids = deleteSandboxesEndedBefore(db, beforeMs, BATCH_COUNT);
    for (const id of ids) await removeEventLog(layout, id);
    full = ids.length === BATCH_COUNT;
  }
}

async function expireOperations(options: JanitorOptions, signal: AbortSignal): Promise<void> {
  const { db, layout, clock } = options;
  const beforeMs = clock() - options.operationsRetentionMs;
  for (let full = true; full && !signal.aborted; ) {
    const ids = deleteOperationsFinishedBefore(db, beforeMs, BATCH_COUNT);
    for (const id of ids) await removeEventLog(layout, id);
    full = ids.length === BATCH_COUNT;
  }
}
