import type { Database } from "../../db/database.ts";
import { layerChain } from "../../db/layers.ts";
import { insertMergedLayer, mergedLayersWithTop, touchMergedLayers } from "../../db/merged-layers.ts";
import type { AccountId, LayerId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import type { Metrics } from "../../metrics.ts";
import { requireSpace } from "../../storage/free-space.ts";
import type { LayerChain } from "../../storage/layers/layer-store.ts";
import { untilAborted } from "../../system/waiting.ts";
import { LAYERS_COUNT_MAX } from "../../vm/agent/protocol.ts";
import { CpuWeight } from "../../vm/cpu-weight.ts";
import type { Scheduler } from "../operations/scheduler.ts";
import { type ChainLayer, isStandIn, planAttach, type Segment } from "./attach-plan.ts";
import { MergeFailures } from "./merge-failures.ts";
import { type MergeJob, type MergeTools, mergeLayers } from "./merge-layers.ts";
import { MergePlaces, MergeWeight, type Urgency } from "./merge-places.ts";
import { type Merge, type MergeLimits, mergeDiskBytes, mergeSize, nextMerge } from "./merge-policy.ts";
import { MergedSpace, totalBytes } from "./merged-space.ts";

/** Disks that are merged although runs go on: a chain that grows quickly must not get too long. */
const BUSY_COUNT_MIN = 8;
/** Disks that are merged once nothing runs. */
const QUIET_COUNT_MIN = 3;
/** Nothing has run for so long: the host is quiet. */
const QUIET_MS = 1000;
/** How often it is looked whether the host is quiet, as long as there is something to merge. */
const LOOK_MS = 250;
/** Disks of a chain that is merged now, whoever else wants the host. */
const URGENT_COUNT_MIN = 24;
/** As many disks more double the processors that an urgent merge gets. */
const URGENT_DOUBLING_COUNT = 16;
const URGENT_CPU_WEIGHT_MAX = 4 * CpuWeight.inUse;
/** Chains that are remembered to be merged; the oldest is forgotten, and remembered again when it is used. */
const WANTED_COUNT_MAX = 64;
/** Runs that may go on from a chain while it is merged. */
const MEANWHILE_COUNT_MAX = 32;
/** A use is noted once in this time. */
const TOUCH_MS = 60_000;

export interface CompactorOptions extends MergeTools {
  readonly db: Database;
  readonly log: Log;
  readonly clock: () => number;
  readonly scheduler: Scheduler;
  readonly metrics: Pick<Metrics, "mergesEnded" | "mergeSeconds">;
  /** merged layers of an account take at most this share of the bytes of its layers; 0: none are made ahead */
  readonly mergedShare: number;
  /** largest disk of a machine */
  readonly diskBytesMax: number;
  /** room on the disk that merges leave free */
  readonly diskReserveBytes: number;
  /** default is `mergeLayers` */
  readonly merge?: typeof mergeLayers;
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
  /** disks that could be merged together */
  readonly count: number;
  /** disks of the chain */
  readonly diskCount: number;
}

/**
 * Keeps long chains of layers cheap to attach: runs of layers are merged into one that stands in for them, in the
 * background, one merge at a time. Nothing waits for it: as long as a chain is short its merge makes way for
 * everybody, and one that grows on a host without rest is merged beside the runs, of whose processors it takes the
 * more the longer the chain is. The layers themselves stay as they are.
 */
export class Compactor implements AsyncDisposable {
  readonly #options: CompactorOptions;
  readonly #space: MergedSpace;
  readonly #places: MergePlaces;
  readonly #stopped = new AbortController();
  /** by the top layer, the latest last */
  readonly #wanted = new Map<LayerId, Wanted>();
  readonly #failures = new MergeFailures();
  #wake = Promise.withResolvers<void>();
  /** of the merge that runs and that nobody waits for */
  #weight: MergeWeight | null = null;
  /** The end of the last merge that a run waits for: they are done one after the other, and share what they make. */
  #turn: Promise<unknown> = Promise.resolve();
  #busyAtMs: number;
  #loop: Promise<void> = Promise.resolve();

  constructor(options: CompactorOptions) {
    this.#options = options;
    this.#space = new MergedSpace(options);
    this.#places = new MergePlaces(options);
    this.#busyAtMs = options.clock();
  }

  /** Begins to work. */
  start(): void {
    if (this.#stopped.signal.aborted) return;
    this.#space.suspectAll();
    this.#loop = this.#run();
  }

  /** Chains that wait to be merged. */
  get waitingCount(): number {
    return this.#wanted.size;
  }

  /**
   * The fewest layers that show what the chain of `topId` shows. Where even they are too many for a machine, the
   * chain is merged first.
   * @throws ApiError when that fails; the reason of `signal`
   */
  async attach(accountId: AccountId, topId: LayerId, signal: AbortSignal): Promise<LayerChain> {
    let chain = this.#chain(accountId, topId);
    while (chain.plan.length > LAYERS_COUNT_MAX) {
      await this.#shorten(chain, signal);
      chain = this.#chain(accountId, topId);
    }
    const layers = chain.plan.map(({ id }) => id);
    this.#touch(chain, TOUCH_MS);
    this.#want(chain);
    // Last, because what comes before may fail, and still in the turn in which the chain was read.
    return this.#options.layers.hold(layers);
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
    const standIns = layers.length < 3 ? [] : mergedLayersWithTop(this.#options.db, accountId, idsOf(layers));
    return { accountId, topId, layers, plan: planAttach(layers, standIns) };
  }

  #touch({ plan }: Chain, ageMs: number): void {
    const now = this.#options.clock();
    const used = plan.filter(isStandIn).map(({ id }) => id);
    touchMergedLayers(this.#options.db, used, { now, beforeMs: now - ageMs });
  }

  /** Remembers a chain that could be shorter. */
  #want(chain: Chain): void {
    const { accountId, topId, layers, plan } = chain;
    // Who goes on from the child of an image will hardly come back to the image.
    const parentId = layers.at(-2)?.id;
    if (parentId !== undefined) this.#wanted.delete(parentId);
    this.#wanted.delete(topId);
    const limits = { ...ANY_SIZE, floor: this.#floor(chain) };
    const merge =
      nextMerge(plan, { ...limits, countMin: BUSY_COUNT_MIN }) ??
      nextMerge(plan, { ...limits, countMin: QUIET_COUNT_MIN });
    if (merge === null || this.#options.mergedShare === 0) return;
    const wanted = { accountId, topId, count: merge.to - merge.from + 1, diskCount: plan.length };
    this.#wanted.set(topId, wanted);
    const [oldest] = this.#wanted.keys();
    if (this.#wanted.size > WANTED_COUNT_MAX && oldest !== undefined) this.#wanted.delete(oldest);
    if (isUrgent(wanted)) {
      this.#places.overtake();
      this.#weight?.raise(cpuWeightOf(wanted));
    }
    this.#wake.resolve();
  }

  async #run(): Promise<void> {
    while (!this.#stopped.signal.aborted) {
      const grown = this.#space.due();
      const wanted = this.#next();
      if (grown !== null) await this.#space.trim(grown, { isQuiet: this.#isQuiet() });
      else if (wanted !== null) await this.#compact(wanted);
      else if (this.#wanted.size > 0 || this.#space.isPending) await Bun.sleep(LOOK_MS);
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

  /** The chain to work on now: the longest urgent one, a long one at any time, any of them when the host is quiet. */
  #next(): Wanted | null {
    const all = [...this.#wanted.values()];
    const [urgent] = all.filter(isUrgent).sort((a, b) => b.diskCount - a.diskCount);
    if (urgent !== undefined) return urgent;
    const countMin = this.#isQuiet() ? QUIET_COUNT_MIN : BUSY_COUNT_MIN;
    return all.findLast(({ count }) => count >= countMin) ?? null;
  }

  /** Does the next merge of a chain, and remembers the chain when there is more to do or other work came first. */
  async #compact(wanted: Wanted): Promise<void> {
    try {
      if ((await this.#planned(wanted)) === null) return;
      // An urgent one that came meanwhile found no idle wait to overtake.
      const urgency = isUrgent(this.#next() ?? wanted) ? "urgent" : "idle";
      using place = await this.#places.take(urgency, this.#stopped.signal);
      // The wait may have been long, and the chain have grown.
      const current = place === null ? null : this.#next();
      if (place === null || current === null || isUrgent(current) !== (urgency === "urgent")) return;
      const planned = await this.#planned(current);
      if (planned === null) return;
      this.#wanted.delete(current.topId);
      const cpuWeight = urgency === "urgent" ? cpuWeightOf(current) : CpuWeight.waiting;
      await this.#mergeBeside(planned, { urgency, cpuWeight, yield: place.yield });
      this.#wantAgain(current);
    } catch (error) {
      if (this.#stopped.signal.aborted) return;
      // It is remembered again when it is used; the next turn, which is now, would fail in the same way.
      if (this.#wanted.get(wanted.topId) === wanted) this.#wanted.delete(wanted.topId);
      this.#options.log.warn("layers were not merged", { error });
    }
  }

  /**
   * The next merge of a chain within the limits of its account. Null when there is none, and the chain is forgotten,
   * or when the chain is not what it was, and is remembered as it is now.
   */
  async #planned(wanted: Wanted): Promise<{ readonly chain: Chain; readonly merge: Merge } | null> {
    const { accountId, topId, diskCount } = wanted;
    const allowedBytes = await this.#space.allowedBytes(accountId);
    if (this.#wanted.get(topId) !== wanted) return null;
    const chain = this.#chain(accountId, topId);
    if (chain.plan.length !== diskCount) {
      this.#want(chain);
      return null;
    }
    const limits = { ...this.#room(chain, allowedBytes), floor: this.#floor(chain) };
    const many = diskCount < URGENT_COUNT_MIN ? null : nextMerge(chain.plan, { ...limits, countMin: BUSY_COUNT_MIN });
    const merge = many ?? nextMerge(chain.plan, { ...limits, countMin: QUIET_COUNT_MIN });
    if (merge === null) this.#wanted.delete(topId);
    return merge === null ? null : { chain, merge };
  }

  /** A merge that nobody waits for. One that failed is not tried again soon; one that had to make way is. */
  async #mergeBeside(
    { chain, merge }: { readonly chain: Chain; readonly merge: Merge },
    options: { readonly urgency: Urgency; readonly cpuWeight: number; readonly yield: AbortSignal | null },
  ): Promise<void> {
    const { log, clock } = this.#options;
    const signals = options.yield === null ? [] : [options.yield];
    const signal = AbortSignal.any([this.#stopped.signal, ...signals]);
    const { urgency, cpuWeight } = options;
    const weight = new MergeWeight(cpuWeight);
    this.#weight = weight;
    using _ended = {
      [Symbol.dispose]: () => {
        this.#weight = null;
      },
    };
    try {
      await this.#merge(chain, merge, { urgency, signal, onMachine: (weigh) => weight.applyBy(weigh) });
    } catch (error) {
      if (!signal.aborted) {
        this.#failures.add(idsOf(coveredBy(chain, merge)), clock());
        throw error;
      }
      log.debug("a merge made way for other work");
    }
  }

  /** Position of the highest disk of a plan that must not be merged because that failed before; 0, the base, if none. */
  #floor({ layers, plan }: Chain): number {
    const now = this.#options.clock();
    const at = plan.findLastIndex(({ last }) => this.#failures.blocks((layers[last] as ChainLayer).id, now));
    return Math.max(0, at);
  }

  /** Unless somebody went on from the chain meanwhile. */
  #wantAgain({ accountId, topId }: Wanted): void {
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
      const limits = { countMin: 2, bytesMax, addedBytesMax: bytesMax };
      const merge = nextMerge(chain.plan, { ...limits, floor: this.#floor(chain) }) ?? nextMerge(chain.plan, limits);
      // Each a fraction of the one below it, or all of them large: any merge is better than none.
      await this.#merge(chain, merge ?? { from: length - 2, to: length - 1 }, { urgency: "forced", signal });
    });
    this.#turn = work.catch(() => undefined);
    await untilAborted(work, signal);
  }

  /** Merges disks that follow each other in a plan, and publishes the result. */
  async #merge(chain: Chain, merge: Merge, options: MergeOptions): Promise<void> {
    const { metrics } = this.#options;
    const { urgency, signal } = options;
    const startedAt = performance.now();
    try {
      const isPublished = await this.#mergeAndPublish(chain, merge, options);
      metrics.mergesEnded.add({ urgency, outcome: isPublished ? "merged" : "not_needed" });
      if (isPublished) metrics.mergeSeconds.observe({ urgency }, (performance.now() - startedAt) / 1000);
    } catch (error) {
      metrics.mergesEnded.add({ urgency, outcome: signal.aborted ? "made_way" : "failed" });
      throw error;
    }
  }

  /** False when the result was not needed any more. */
  async #mergeAndPublish(chain: Chain, merge: Merge, options: MergeOptions): Promise<boolean> {
    const { db, layout, clock, log, diskReserveBytes } = this.#options;
    const { accountId, layers } = chain;
    const { urgency, signal, ...rest } = options;
    const segments = chain.plan.slice(merge.from, merge.to + 1);
    const belowId = layers[(segments[0]?.first ?? 0) - 1]?.id;
    const topId = layers[segments.at(-1)?.last ?? 0]?.id;
    if (belowId === undefined || topId === undefined) throw new RangeError("a base is never merged");
    requireSpace(layout.root, diskReserveBytes + totalBytes(segments));
    using merged = this.#options.layers.hold(idsOf(segments));
    const startedAt = performance.now();
    const diskBytes = Math.min(mergeDiskBytes(segments), this.#options.diskBytesMax);
    const job = { layers: merged, size: mergeSize(segments), diskBytes, ...rest };
    await using staged = await (this.#options.merge ?? mergeLayers)(this.#options, job, signal);
    const { id, sizeBytes, entryCount } = staged;
    // An equal one may have come first, by a run that could not wait; or the layers are gone with their image.
    if (!insertMergedLayer(db, { id, accountId, belowId, topId, sizeBytes, entryCount, now: clock() })) return false;
    staged.keep();
    this.#space.retire(idsOf(segments.filter(isStandIn)));
    this.#touch(this.#chain(accountId, chain.topId), 0);
    this.#space.suspect(accountId);
    this.#wake.resolve();
    const duration_ms = Math.round(performance.now() - startedAt);
    const fields = { layers: segments.length, of: chain.plan.length, layer: id, size_bytes: sizeBytes, duration_ms };
    log.info("layers were merged", { urgency, ...fields });
    return true;
  }

  /** What a merge of a chain may amount to, without what other chains use being given up for it. */
  #room({ accountId, layers, plan }: Chain, allowedBytes: number): Pick<MergeLimits, "bytesMax" | "addedBytesMax"> {
    const { db, diskBytesMax } = this.#options;
    const own = new Set(idsOf(mergedLayersWithTop(db, accountId, idsOf(layers))));
    const ownBytes = totalBytes(plan.filter(isStandIn));
    const addedBytesMax = this.#space.roomBytes(accountId, allowedBytes, { own, ownBytes });
    return { bytesMax: diskBytesMax / 2, addedBytesMax };
  }
}

interface MergeOptions extends Pick<MergeJob, "onMachine"> {
  readonly urgency: Urgency;
  readonly signal: AbortSignal;
}

const ANY_SIZE = { bytesMax: Number.MAX_SAFE_INTEGER, addedBytesMax: Number.MAX_SAFE_INTEGER };

function isUrgent({ count, diskCount }: Wanted): boolean {
  return diskCount >= URGENT_COUNT_MIN && count >= BUSY_COUNT_MIN;
}

/** Share of the processors of the merge of a chain that is urgent. */
function cpuWeightOf({ diskCount }: Wanted): number {
  const weight = CpuWeight.inUse * 2 ** ((diskCount - URGENT_COUNT_MIN) / URGENT_DOUBLING_COUNT);
  return Math.round(Math.min(URGENT_CPU_WEIGHT_MAX, weight));
}

/** The layers that a merge of disks of a plan takes in, the lowest first. */
function coveredBy({ layers, plan }: Chain, { from, to }: Merge): readonly ChainLayer[] {
  return layers.slice(plan[from]?.first, (plan[to]?.last ?? 0) + 1);
}

function idsOf(layers: readonly { readonly id: LayerId }[]): LayerId[] {
  return layers.map(({ id }) => id);
}
