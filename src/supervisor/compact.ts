import type { Database } from "../db/database.ts";
import { layerChain } from "../db/layers.ts";
import {
  accountsWithMergedLayers,
  deleteMergedLayer,
  insertMergedLayer,
  layerBytesOf,
  mergedLayersByUse,
  mergedLayersOn,
  touchMergedLayers,
} from "../db/merged-layers.ts";
import type { AccountId, LayerId } from "../domain/ids.ts";
import type { Log } from "../log.ts";
import { sharedLayerHolds } from "../storage/layer-holds.ts";
import { removeLayer } from "../storage/layers.ts";
import { requireSpace } from "../storage/space.ts";
import { LAYERS_COUNT_MAX } from "../vm/protocol.ts";
import { type ChainLayer, isStandIn, planAttach, type Segment } from "./attach-plan.ts";
import { untilAborted } from "./deadline.ts";
import { type MergeTools, mergeLayers } from "./merge-layers.ts";
import { type Merge, mergeDiskBytes, nextMerge } from "./merge-policy.ts";
import { costOf, type Scheduler } from "./scheduler.ts";

/** Disks that are merged although runs go on: a chain that grows quickly must not get too long. */
const BUSY_COUNT_MIN = 8;
/** Disks that are merged once nothing runs. */
const QUIET_COUNT_MIN = 3;
/** Nothing has run for so long: the host is quiet. */
const QUIET_MS = 1000;
/** How often it is looked whether the host is quiet, as long as there is something to merge. */
const LOOK_MS = 250;
/** Chains that are remembered to be merged; the oldest is forgotten, and remembered again when it is used. */
const WANTED_COUNT_MAX = 64;
/** Merges that failed are not tried again by the same process. */
const FAILED_COUNT_MAX = 1000;
/** Runs that may go on from a chain while it is merged. */
const MEANWHILE_COUNT_MAX = 32;
/** A use is noted once in this time. */
const TOUCH_MS = 60_000;
/** What was used in this time is not given up for another merge: two chains would take turns for ever. */
const KEEP_MS = 600_000;
/** Share of the processors beside the machines of runs, which have ten times as much. */
const CPU_WEIGHT = 5;

export interface CompactorOptions extends MergeTools {
  readonly db: Database;
  readonly log: Log;
  readonly clock: () => number;
  readonly scheduler: Scheduler;
  /** merged layers of an account take at most this share of the bytes of its layers; 0: none are made ahead */
  readonly mergedShare: number;
  /** largest disk of a machine */
  readonly diskBytesMax: number;
  /** room on the disk that merges leave free */
  readonly diskReserveBytes: number;
}

/** What to attach for an image, the lowest first. It stays until disposal. */
export interface Attachment extends Disposable {
  readonly layers: readonly LayerId[];
}

/** A chain that somebody started from. */
interface Chain {
  readonly accountId: AccountId;
  readonly topId: LayerId;
  /** the base first */
  readonly layers: readonly ChainLayer[];
  readonly plan: readonly Segment[];
}

/** A chain that is to be merged. */
interface Wanted extends Pick<Chain, "accountId" | "topId"> {
  /** disks that could be merged */
  readonly count: number;
}

/**
 * Keeps long chains of layers cheap to attach: runs of layers are merged into one that stands in for them, in the
 * background, one merge at a time, and only while nobody else wants the room. The layers themselves stay as they are.
 */
export class Compactor implements AsyncDisposable {
  readonly #options: CompactorOptions;
  readonly #stopped = new AbortController();
  /** by the top layer, the latest last */
  readonly #wanted = new Map<LayerId, Wanted>();
  readonly #failed = new Set<string>();
  /** accounts whose merged layers may be beyond their share */
  readonly #grown = new Set<AccountId>();
  #wake = Promise.withResolvers<void>();
  /** The end of the last merge that a run waits for: they are done one after the other, and share what they make. */
  #turn: Promise<unknown> = Promise.resolve();
  #busyAtMs: number;
  #loop: Promise<void> = Promise.resolve();

  constructor(options: CompactorOptions) {
    this.#options = options;
    this.#busyAtMs = options.clock();
  }

  /** Begins to work; what a former process left may be beyond a share that was made smaller. */
  start(): void {
    for (const accountId of accountsWithMergedLayers(this.#options.db)) this.#grown.add(accountId);
    this.#loop = this.#run();
  }

  /**
   * The fewest layers that show what the chain of `topId` shows. Where even they are too many for a machine, the
   * chain is merged first.
   * @throws ApiError when that fails; the reason of `signal`
   */
  async attach(accountId: AccountId, topId: LayerId, signal: AbortSignal): Promise<Attachment> {
    let chain = this.#chain(accountId, topId);
    while (chain.plan.length > LAYERS_COUNT_MAX) {
      await this.#shorten(chain, signal);
      chain = this.#chain(accountId, topId);
    }
    const layers = chain.plan.map(({ id }) => id);
    const held = sharedLayerHolds.hold(layers);
    this.#touch(chain, TOUCH_MS);
    this.#want(chain);
    return { layers, [Symbol.dispose]: () => held[Symbol.dispose]() };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort(new Error("the service is stopping"));
    this.#wake.resolve();
    await this.#loop;
    await this.#turn;
  }

  #chain(accountId: AccountId, topId: LayerId): Chain {
    const layers = layerChain(this.#options.db, topId);
    // The usual chain of a base and a run has nothing that could stand in.
    const standIns = layers.length < 3 ? [] : mergedLayersOn(this.#options.db, accountId, idsOf(layers));
    return { accountId, topId, layers, plan: planAttach(layers, standIns) };
  }

  #touch({ plan }: Chain, ageMs: number): void {
    const now = this.#options.clock();
    const used = plan.filter(isStandIn).map(({ id }) => id);
    touchMergedLayers(this.#options.db, used, { now, beforeMs: now - ageMs });
  }

  /** Remembers a chain that could be shorter. */
  #want({ accountId, topId, layers, plan }: Chain): void {
    // Who goes on from the child of an image will hardly come back to the image.
    const parentId = layers.at(-2)?.id;
    if (parentId !== undefined) this.#wanted.delete(parentId);
    this.#wanted.delete(topId);
    const limits = {
      countMin: QUIET_COUNT_MIN,
      bytesMax: Number.MAX_SAFE_INTEGER,
      addedBytesMax: Number.MAX_SAFE_INTEGER,
    };
    const merge = nextMerge(plan, limits);
    if (merge === null || this.#options.mergedShare === 0) return;
    this.#wanted.set(topId, { accountId, topId, count: merge.to - merge.from + 1 });
    const [oldest] = this.#wanted.keys();
    if (this.#wanted.size > WANTED_COUNT_MAX && oldest !== undefined) this.#wanted.delete(oldest);
    this.#wake.resolve();
  }

  async #run(): Promise<void> {
    while (!this.#stopped.signal.aborted) {
      const wanted = this.#next();
      const [grown] = this.#grown;
      if (wanted !== null) await this.#compact(wanted);
      else if (grown !== undefined && this.#isQuiet()) await this.#trim(grown);
      else if (this.#wanted.size + this.#grown.size > 0) await Bun.sleep(LOOK_MS);
      else {
        await this.#wake.promise;
        this.#wake = Promise.withResolvers<void>();
      }
    }
  }

  #isQuiet(): boolean {
    const now = this.#options.clock();
    if (this.#options.scheduler.runningCount > 0) this.#busyAtMs = now;
    return now - this.#busyAtMs >= QUIET_MS;
  }

  /** The chain to work on now: a long one at any time, and any of them when the host is quiet. */
  #next(): Wanted | null {
    const countMin = this.#isQuiet() ? QUIET_COUNT_MIN : BUSY_COUNT_MIN;
    return [...this.#wanted.values()].findLast(({ count }) => count >= countMin) ?? null;
  }

  /** Does the next merge of a chain, and remembers the chain when there is more to do or other work came first. */
  async #compact({ accountId, topId }: Wanted): Promise<void> {
    const { scheduler, shape, log } = this.#options;
    this.#wanted.delete(topId);
    try {
      using ticket = await scheduler.admitIdle(costOf(shape), this.#stopped.signal);
      const chain = this.#chain(accountId, topId);
      const merge = nextMerge(chain.plan, { countMin: QUIET_COUNT_MIN, ...this.#room(chain) });
      if (merge === null || this.#failed.has(keyOf(chain, merge))) return;
      const signal = AbortSignal.any([ticket.yield, this.#stopped.signal]);
      try {
        await this.#merge(chain, merge, { signal, cpuWeight: CPU_WEIGHT });
      } catch (error) {
        if (!signal.aborted) {
          if (this.#failed.size < FAILED_COUNT_MAX) this.#failed.add(keyOf(chain, merge));
          throw error;
        }
        log.debug("a merge made way for other work");
      }
      this.#wantAgain(accountId, topId);
    } catch (error) {
      if (!this.#stopped.signal.aborted) log.warn("layers were not merged", { error });
    }
  }

  /** Unless somebody went on from the chain meanwhile. */
  #wantAgain(accountId: AccountId, topId: LayerId): void {
    const latest = [...this.#wanted.values()].findLast((wanted) => wanted.accountId === accountId);
    const newest = latest === undefined ? [] : layerChain(this.#options.db, latest.topId).slice(-MEANWHILE_COUNT_MAX);
    if (newest.some(({ id }) => id === topId)) return;
    const chain = this.#chain(accountId, topId);
    if (chain.layers.length > 0) this.#want(chain);
  }

  /** Merges part of a chain that is too long for a machine, unless somebody else just did. */
  async #shorten({ accountId, topId }: Chain, signal: AbortSignal): Promise<void> {
    const work = this.#turn.then(async () => {
      signal.throwIfAborted();
      const chain = this.#chain(accountId, topId);
      const { length } = chain.plan;
      if (length <= LAYERS_COUNT_MAX) return;
      const bytesMax = this.#options.diskBytesMax / 2;
      const merge = nextMerge(chain.plan, { countMin: 2, bytesMax, addedBytesMax: bytesMax });
      // Each a fraction of the one below it, or all of them large: any merge is better than none.
      await this.#merge(chain, merge ?? { from: length - 2, to: length - 1 }, { signal });
    });
    this.#turn = work.catch(() => undefined);
    await untilAborted(work, signal);
  }

  /** Merges disks that follow each other in a plan, and publishes the result. */
  async #merge(
    { accountId, layers, plan }: Chain,
    { from, to }: Merge,
    options: { readonly signal: AbortSignal; readonly cpuWeight?: number },
  ): Promise<void> {
    const { db, layout, clock, log, diskReserveBytes } = this.#options;
    const { signal, ...rest } = options;
    const segments = plan.slice(from, to + 1);
    const belowId = layers[(segments[0]?.first ?? 0) - 1]?.id;
    const topId = layers[segments.at(-1)?.last ?? 0]?.id;
    if (belowId === undefined || topId === undefined) throw new RangeError("a base is never merged");
    requireSpace(layout.root, diskReserveBytes + totalBytes(segments));
    const ids = segments.map(({ id }) => id);
    using _held = sharedLayerHolds.hold(ids);
    const startedAt = performance.now();
    const diskBytes = Math.min(mergeDiskBytes(segments), this.#options.diskBytesMax);
    const job = { layers: ids, diskBytes, ...rest };
    await using staged = await mergeLayers(this.#options, job, signal);
    const { id, sizeBytes, entryCount } = staged;
    // An equal one may have come first, by a run that could not wait; or the layers are gone with their image.
    if (!insertMergedLayer(db, { id, accountId, belowId, topId, sizeBytes, entryCount, now: clock() })) return;
    staged.keep();
    this.#grown.add(accountId);
    // What it replaces is older now than what is still of use beside it.
    this.#touch(this.#chain(accountId, topId), 0);
    this.#wake.resolve();
    const duration_ms = Math.round(performance.now() - startedAt);
    log.info("layers were merged", { layers: ids.length, layer: id, size_bytes: sizeBytes, duration_ms });
  }

  /** What a merge of a chain may amount to, without what other chains use being given up for it. */
  #room({ accountId, layers, plan }: Chain): { readonly bytesMax: number; readonly addedBytesMax: number } {
    const { db, clock, diskBytesMax } = this.#options;
    const usedSinceMs = clock() - KEEP_MS;
    const own = new Set(idsOf(mergedLayersOn(db, accountId, idsOf(layers))));
    const others = mergedLayersByUse(db, accountId).filter(
      ({ id, lastUsedAt }) => !own.has(id) && lastUsedAt >= usedSinceMs,
    );
    const usedBytes = totalBytes(others) + totalBytes(plan.filter(isStandIn));
    return { bytesMax: diskBytesMax / 2, addedBytesMax: this.#allowedBytes(accountId) - usedBytes };
  }

  #allowedBytes(accountId: AccountId): number {
    return this.#options.mergedShare * layerBytesOf(this.#options.db, accountId);
  }

  /** Removes what was not used for longest until the account's merged layers are within their share. */
  async #trim(accountId: AccountId): Promise<void> {
    const { db, layout, log } = this.#options;
    this.#grown.delete(accountId);
    try {
      const rows = mergedLayersByUse(db, accountId);
      let excessBytes = totalBytes(rows) - this.#allowedBytes(accountId);
      for (const { id, sizeBytes } of rows) {
        if (excessBytes <= 0) return;
        if (sharedLayerHolds.isHeld(id)) continue;
        deleteMergedLayer(db, id);
        await removeLayer(layout, id);
        excessBytes -= sizeBytes;
        log.info("a merged layer was removed", { layer: id, size_bytes: sizeBytes });
      }
    } catch (error) {
      log.warn("merged layers were not removed", { error });
    }
  }
}

function totalBytes(rows: readonly { readonly sizeBytes: number }[]): number {
  return rows.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
}

function idsOf(layers: readonly { readonly id: LayerId }[]): LayerId[] {
  return layers.map(({ id }) => id);
}

function keyOf({ plan }: Chain, { from, to }: Merge): string {
  return `${plan[from]?.id} ${plan[to]?.id}`;
}
