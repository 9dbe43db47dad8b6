import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { CgroupTree } from "../cgroup/cgroup.ts";
import type { Database } from "../db/database.ts";
import { deleteFilesUnusedSince, isBlobReferenced } from "../db/files.ts";
import { referencedLayerIds } from "../db/layers.ts";
import { deleteOperationsFinishedBefore, existingOperations } from "../db/operations.ts";
import type { Log } from "../log.ts";
import { listBlobs, removeBlob } from "../storage/blobs.ts";
import { listLayers, removeLayer } from "../storage/layers.ts";
import type { DataLayout } from "../storage/layout.ts";
import { listOutputs, removeOutputs } from "../storage/outputs.ts";

/** Rows that one pass removes in one transaction: it must not hold the event loop. */
const BATCH_COUNT = 500;
const PASS_INTERVAL_MS = 3_600_000;

export interface JanitorOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly log: Log;
  readonly clock: () => number;
  /** how long ended operations are kept, in `milliseconds` */
  readonly operationsRetentionMs: number;
  /** how long a file that no instance uses is kept, in `milliseconds`; null: for ever */
  readonly filesTtlMs: number | null;
}

/**
 * Removes what a former process left: its machines, the files that it was making, and whatever no row refers
 * to. Nothing else may run yet: work in progress looks like garbage.
 */
export async function sweep({ db, layout, log }: JanitorOptions, cgroups: CgroupTree): Promise<void> {
  for (const name of await cgroups.list()) {
    log.warn("removing a machine of a former process", { cgroup: name });
    await cgroups.open(name)[Symbol.asyncDispose]();
  }
  for (const directory of [layout.vms, layout.tmp]) {
    for (const name of await readdir(directory)) await rm(join(directory, name), { recursive: true, force: true });
  }
  const layers = referencedLayerIds(db);
  for (const id of await listLayers(layout)) {
    if (!layers.has(id)) await removeLayer(layout, id);
  }
  for (const sha256 of await listBlobs(layout)) {
    if (!isBlobReferenced(db, sha256)) await removeBlob(layout, sha256);
  }
  const outputs = await listOutputs(layout);
  const operations = existingOperations(db, outputs);
  for (const id of outputs) {
    if (!operations.has(id)) await removeOutputs(layout, id);
  }
}

/** Removes what is older than its retention, now and every hour until it is disposed. */
export function startJanitor(options: JanitorOptions): AsyncDisposable {
  const stopped = new AbortController();
  let pass = expire(options, stopped.signal);
  const timer = setInterval(() => {
    pass = pass.then(() => expire(options, stopped.signal));
  }, PASS_INTERVAL_MS);
  return {
    [Symbol.asyncDispose]: async () => {
      clearInterval(timer);
      stopped.abort();
      await pass;
    },
  };
}

/** One pass; what goes wrong is logged, and the next pass tries again. */
async function expire(options: JanitorOptions, signal: AbortSignal): Promise<void> {
  try {
    await expireOperations(options, signal);
    await expireFiles(options, signal);
  } catch (error) {
    options.log.error("expiry failed", { error });
  }
}

async function expireOperations(options: JanitorOptions, signal: AbortSignal): Promise<void> {
  const { db, layout, clock } = options;
  const beforeMs = clock() - options.operationsRetentionMs;
  for (let full = true; full && !signal.aborted; ) {
    const ids = deleteOperationsFinishedBefore(db, beforeMs, BATCH_COUNT);
    for (const id of ids) await removeOutputs(layout, id);
    full = ids.length === BATCH_COUNT;
  }
}

async function expireFiles({ db, layout, clock, filesTtlMs }: JanitorOptions, signal: AbortSignal): Promise<void> {
  if (filesTtlMs === null) return;
  for (let full = true; full && !signal.aborted; ) {
    const rows = deleteFilesUnusedSince(db, clock() - filesTtlMs, BATCH_COUNT);
    for (const { sha256 } of rows) {
      if (!isBlobReferenced(db, sha256)) await removeBlob(layout, sha256);
    }
    full = rows.length === BATCH_COUNT;
  }
}
