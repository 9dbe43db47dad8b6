import type { Database } from "../../db/database.ts";
import { layerChain } from "../../db/images/layers.ts";
import { insertMergedLayer, mergedLayersWithTop, touchMergedLayers } from "../../db/images/merged-layers.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import type { AccountId, LayerId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import type { Metrics } from "../../metrics.ts";
import { requireSpace } from "../../storage/free-space.ts";
import type { LayerChain } from "../../storage/layers/layer-store.ts";
import { untilAborted } from "../../system/waiting.ts";
import { LAYERS_COUNT_MAX } from "../../vm/agent/protocol.ts";
import { CpuWeight } from "../../vm/cpu-weight.ts";
import type { Scheduler } from "../operations/scheduler.ts";
import { type ChainLayer, isMerged, planAttach, type Segment } from "./attach-plan.ts";
import { MergeFailures } from "./merge-failures.ts";
import { type MergeJob, type MergeTools, mergeLayers } from "./merge-layers.ts";
import { type Merge, type MergeLimits, mergeDiskBytes, mergeSize, nextMerge } from "./merge-policy.ts";
import { MergeSlots, MergeWeight, type Urgency } from "./merge-slots.ts";
import { MergedSpace, totalBytes } from "./merged-space.ts";

/** Smallest number of disks to merge while instances run, so that a chain that grows quickly does not get too long. */
const BUSY_COUNT_MIN = 8;
/** Smallest number of disks to merge on a quiet host. */
const QUIET_COUNT_MIN = 3;
/** The host is quiet when nothing has run for this long. */
const QUIET_MS = 1000;
/** Interval between checks whether the host is quiet, while there is something to merge. */
const CHECK_MS = 250;
/** A chain of this many disks is merged even while other work needs the host. */
const URGENT_COUNT_MIN = 24;
/** This many further disks double the CPU weight of an urgent merge. */
const URGENT_DOUBLING_COUNT = 16;
const URGENT_CPU_WEIGHT_MAX = 4 * CpuWeight.inUse;
/** Largest number of candidates; the oldest is dropped, and becomes one again when it is used. */
const CANDIDATES_COUNT_MAX = 64;
/** Number of layers at the top of a newer chain among which a merged chain's top is searched. */
const NEWER_LAYERS_COUNT_MAX = 32;
/** The time of the last use is recorded with this accuracy. */
const TOUCH_MS = 60_000;

export interface CompactorOptions extends MergeTools {
  readonly db: Database;
  readonly log: Log;
  readonly clock: () => number;
  readonly scheduler: Scheduler;
  readonly metrics: Pick<Metrics, "mergesEnded" | "mergeSeconds">;
  /** with a share of merged layers of 0, only forced merges are made */
  readonly accounts: Pick<Accounts, "limits">;
  /** largest disk of a machine */
  readonly diskBytesMax: number;
  /** disk space that merges leave free */
  readonly diskReserveBytes: number;
  /** the default is `mergeLayers` */
  readonly merge?: typeof mergeLayers;
}

/** The layers of an image, and the disks to attach for them. */
interface Chain {
  readonly accountId: AccountId;
  readonly topId: LayerId;
  /** the base first */
  readonly layers: readonly ChainLayer[];
  readonly plan: readonly Segment[];
}

/** A chain that could be shorter. */
interface Candidate extends Pick<Chain, "accountId" | "topId"> {
  /** number of disks that could be merged together */
  readonly count: number;
  /** number of disks of the chain */
  readonly diskCount: number;
}

/**
 * Keeps long chains of layers cheap to attach. In the background, one merge at a time, it merges consecutive layers into
 * one that replaces them. The merge of a short chain makes way for all other work. A chain that grows on a busy host is
 * merged while instances run; a longer chain gets more processor time. The merged layers' sources are kept.
 */
export class Compactor implements AsyncDisposable {
  readonly #options: CompactorOptions;
  readonly #space: MergedSpace;
  readonly #slots: MergeSlots;
  readonly #stopped = new AbortController();
  /** by the top layer, the latest last */
  readonly #candidates = new Map<LayerId, Candidate>();
  readonly #failures = new MergeFailures();
  #wake = Promise.withResolvers<void>();
  /** weight of the current background merge */
  #weight: MergeWeight | null = null;
  /** the end of the last forced merge; forced merges are done one after the other, so that they share results */
  #turn: Promise<unknown> = Promise.resolve();
  #busyAtMs: number;
  #loop: Promise<void> = Promise.resolve();

  constructor(options: CompactorOptions) {
    this.#options = options;
    this.#space = new MergedSpace(options);
    this.#slots = new MergeSlots(options);
    this.#busyAtMs = options.clock();
  }

  /** Starts to merge in the background. */
  start(): void {
    if (this.#stopped.signal.aborted) return;
    this.#space.scheduleAllTrims();
    this.#loop = this.#run();
  }

  /** Number of chains that wait to be merged. */
  get waitingCount(): number {
    return this.#candidates.size;
  }

  /**
   * Opens the fewest disks that have all layers of the chain of `topId`. When even these are more than a machine can
   * attach, this merges some of them first.
   * @throws ApiError when the merge fails; the reason of `signal`
   */
  async attach(accountId: AccountId, topId: LayerId, signal: AbortSignal): Promise<LayerChain> {
    let chain = this.#chain(accountId, topId);
    while (chain.plan.length > LAYERS_COUNT_MAX) {
      await this.#shorten(chain, signal);
      chain = this.#chain(accountId, topId);
    }
    const layers = chain.plan.map(({ id }) => id);
    this.#touch(chain, TOUCH_MS);
    this.#addCandidate(chain);
    // This comes last, because the calls before may throw. There is no await since the chain was read, so it is current.
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
    // The usual chain of a base and a run cannot have a merged layer.
    const mergedLayers = layers.length < 3 ? [] : mergedLayersWithTop(this.#options.db, accountId, idsOf(layers));
    return { accountId, topId, layers, plan: planAttach(layers, mergedLayers) };
  }

  #touch({ plan }: Chain, ageMs: number): void {
    const now = this.#options.clock();
    const used = plan.filter(isMerged).map(({ id }) => id);
    touchMergedLayers(this.#options.db, used, { now, beforeMs: now - ageMs });
  }

  /** Makes a chain a candidate if it could be shorter. */
  #addCandidate(chain: Chain): void {
    const { accountId, topId, layers, plan } = chain;
    // A client that continues from the child of an image rarely returns to the image.
    const parentId = layers.at(-2)?.id;
    if (parentId !== undefined) this.#candidates.delete(parentId);
    this.#candidates.delete(topId);
    const limits = { ...ANY_SIZE, floor: this.#floor(chain) };
    const merge =
      nextMerge(plan, { ...limits, countMin: BUSY_COUNT_MIN }) ??
      nextMerge(plan, { ...limits, countMin: QUIET_COUNT_MIN });
    if (merge === null || this.#options.accounts.limits.mergedLayers.max === 0) return;
    const candidate = { accountId, topId, count: merge.to - merge.from + 1, diskCount: plan.length };
    this.#candidates.set(topId, candidate);
    const [oldest] = this.#candidates.keys();
    if (this.#candidates.size > CANDIDATES_COUNT_MAX && oldest !== undefined) this.#candidates.delete(oldest);
    if (isUrgent(candidate)) {
      this.#slots.preemptIdle();
      this.#weight?.raise(cpuWeightOf(candidate));
    }
    this.#wake.resolve();
  }

  async #run(): Promise<void> {
    while (!this.#stopped.signal.aborted) {
      const accountToTrim = this.#space.nextDueTrim();
      const candidate = this.#next();
      if (accountToTrim !== null) await this.#space.trim(accountToTrim, { isQuiet: this.#isQuiet() });
      else if (candidate !== null) await this.#compact(candidate);
      else if (this.#candidates.size > 0 || this.#space.hasScheduledTrims) await Bun.sleep(CHECK_MS);
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

  /** The chain to merge now: the longest urgent one, else the latest long one; on a quiet host, any. */
  #next(): Candidate | null {
    const all = [...this.#candidates.values()];
    const [urgent] = all.filter(isUrgent).sort((a, b) => b.diskCount - a.diskCount);
    if (urgent !== undefined) return urgent;
    const countMin = this.#isQuiet() ? QUIET_COUNT_MIN : BUSY_COUNT_MIN;
    return all.findLast(({ count }) => count >= countMin) ?? null;
  }

  /** Does the next merge of a chain. The chain stays a candidate when more can be merged, or other work came first. */
  async #compact(candidate: Candidate): Promise<void> {
    try {
      if ((await this.#planned(candidate)) === null) return;
      // An urgent candidate may have come during the await, when there was no idle wait to preempt yet.
      const urgency = isUrgent(this.#next() ?? candidate) ? "urgent" : "idle";
      using slot = await this.#slots.take(urgency, this.#stopped.signal);
      // During a long wait, the chain may have grown.
      const current = slot === null ? null : this.#next();
      if (slot === null || current === null || isUrgent(current) !== (urgency === "urgent")) return;
      const planned = await this.#planned(current);
      if (planned === null) return;
      this.#candidates.delete(current.topId);
      const cpuWeight = urgency === "urgent" ? cpuWeightOf(current) : CpuWeight.waiting;
      await this.#mergeInBackground(planned, { urgency, cpuWeight, yield: slot.yield });
      this.#addCandidateAgain(current);
    } catch (error) {
      if (this.#stopped.signal.aborted) return;
      // An attempt right away would fail in the same way. The next use of the chain makes it a candidate again.
      if (this.#candidates.get(candidate.topId) === candidate) this.#candidates.delete(candidate.topId);
      this.#options.log.warn("cannot merge layers", { error });
    }
  }

  /**
   * The next merge of a chain within the limits of its account. Null when there is none, which drops the candidate, and
   * when the chain has changed, which replaces it.
   */
  async #planned(candidate: Candidate): Promise<{ readonly chain: Chain; readonly merge: Merge } | null> {
    const { accountId, topId, diskCount } = candidate;
    const allowedBytes = await this.#space.allowedBytes(accountId);
    if (this.#candidates.get(topId) !== candidate) return null;
    const chain = this.#chain(accountId, topId);
    if (chain.plan.length !== diskCount) {
      this.#addCandidate(chain);
      return null;
    }
    const limits = { ...this.#sizeLimits(chain, allowedBytes), floor: this.#floor(chain) };
    const many = diskCount < URGENT_COUNT_MIN ? null : nextMerge(chain.plan, { ...limits, countMin: BUSY_COUNT_MIN });
    const merge = many ?? nextMerge(chain.plan, { ...limits, countMin: QUIET_COUNT_MIN });
    if (merge === null) this.#candidates.delete(topId);
    return merge === null ? null : { chain, merge };
  }

  /** Does a background merge. It is tried again soon after it made way for other work, but not after a failure. */
  async #mergeInBackground(
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
      await this.#merge(chain, merge, { urgency, signal, onMachine: (setCpuWeight) => weight.applyTo(setCpuWeight) });
    } catch (error) {
      if (!signal.aborted) {
        this.#failures.add(idsOf(coveredBy(chain, merge)), clock());
        throw error;
      }
      log.debug("a merge made way for other work");
    }
  }

  /** Position of the highest disk of a plan that must not be merged after a failure; 0, the base, when there is none. */
  #floor({ layers, plan }: Chain): number {
    const now = this.#options.clock();
    const at = plan.findLastIndex(({ last }) => this.#failures.blocks((layers[last] as ChainLayer).id, now));
    return Math.max(0, at);
  }

  /** Makes a chain a candidate again, unless the account's latest candidate has grown from it. */
  #addCandidateAgain({ accountId, topId }: Candidate): void {
    const latest = [...this.#candidates.values()].findLast((candidate) => candidate.accountId === accountId);
    const newest =
      latest === undefined ? [] : layerChain(this.#options.db, latest.topId).slice(-NEWER_LAYERS_COUNT_MAX);
    if (newest.some(({ id }) => id === topId)) return;
    const chain = this.#chain(accountId, topId);
    if (chain.layers.length > 0) this.#addCandidate(chain);
  }

  /** Merges part of a chain that is too long for a machine, unless another forced merge has just shortened it. */
  async #shorten({ accountId, topId }: Chain, signal: AbortSignal): Promise<void> {
    const work = this.#turn.then(async () => {
      signal.throwIfAborted();
      const chain = this.#chain(accountId, topId);
      const { length } = chain.plan;
      if (length <= LAYERS_COUNT_MAX) return;
      const bytesMax = this.#options.diskBytesMax / 2;
      const limits = { countMin: 2, bytesMax, addedBytesMax: bytesMax };
      const merge = nextMerge(chain.plan, { ...limits, floor: this.#floor(chain) }) ?? nextMerge(chain.plan, limits);
      // When the policy finds no merge, because of the sizes, any merge is better than none.
      await this.#merge(chain, merge ?? { from: length - 2, to: length - 1 }, { urgency: "forced", signal });
    });
    this.#turn = work.catch(() => undefined);
    await untilAborted(work, signal);
  }

  /** Merges consecutive disks of a plan, and publishes the result. */
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

  /** False when the result is no longer needed. */
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
    // A forced merge may have published an equal layer first, or the image may have been deleted with its layers.
    if (!insertMergedLayer(db, { id, accountId, belowId, topId, sizeBytes, entryCount, now: clock() })) return false;
    staged.keep();
    this.#space.markReplaced(idsOf(segments.filter(isMerged)));
    this.#touch(this.#chain(accountId, chain.topId), 0);
    this.#space.scheduleTrim(accountId);
    this.#wake.resolve();
    const duration_ms = Math.round(performance.now() - startedAt);
    const fields = { layers: segments.length, of: chain.plan.length, layer: id, size_bytes: sizeBytes, duration_ms };
    log.info("merged layers", { urgency, ...fields });
    return true;
  }

  /** Size limits of a merge, within which merged layers that other chains use can stay. */
  #sizeLimits(
    { accountId, layers, plan }: Chain,
    allowedBytes: number,
  ): Pick<MergeLimits, "bytesMax" | "addedBytesMax"> {
    const { db, diskBytesMax } = this.#options;
    const own = new Set(idsOf(mergedLayersWithTop(db, accountId, idsOf(layers))));
    const ownBytes = totalBytes(plan.filter(isMerged));
    const addedBytesMax = this.#space.growthBytes(accountId, allowedBytes, { own, ownBytes });
    return { bytesMax: diskBytesMax / 2, addedBytesMax };
  }
}

interface MergeOptions extends Pick<MergeJob, "onMachine"> {
  readonly urgency: Urgency;
  readonly signal: AbortSignal;
}

const ANY_SIZE = { bytesMax: Number.MAX_SAFE_INTEGER, addedBytesMax: Number.MAX_SAFE_INTEGER };

function isUrgent({ count, diskCount }: Candidate): boolean {
  return diskCount >= URGENT_COUNT_MIN && count >= BUSY_COUNT_MIN;
}

/** CPU weight of the merge of an urgent chain. */
function cpuWeightOf({ diskCount }: Candidate): number {
  const weight = CpuWeight.inUse * 2 ** ((diskCount - URGENT_COUNT_MIN) / URGENT_DOUBLING_COUNT);
  return Math.round(Math.min(URGENT_CPU_WEIGHT_MAX, weight));
}

/** The layers that a merge of disks of a plan covers, the lowest first. */
function coveredBy({ layers, plan }: Chain, { from, to }: Merge): readonly ChainLayer[] {
  return layers.slice(plan[from]?.first, (plan[to]?.last ?? 0) + 1);
}

function idsOf(layers: readonly { readonly id: LayerId }[]): LayerId[] {
  return layers.map(({ id }) => id);
}
