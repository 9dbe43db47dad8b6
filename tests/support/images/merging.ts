import { rmSync, writeFileSync } from "node:fs";
import { openDatabase } from "../../../src/db/database.ts";
import { layerIds } from "../../../src/db/images/layers.ts";
import { type MergedLayerRow, mergedLayersByUse } from "../../../src/db/images/merged-layers.ts";
import { accounts, images, layers } from "../../../src/db/schema.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { ImageId, LayerId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import { IndexMemory } from "../../../src/storage/index/index-memory.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { layerPath } from "../../../src/storage/layers/layers.ts";
import type { StagedLayer } from "../../../src/storage/layers/staged-layer.ts";
import { type DataLayout, dataLayout } from "../../../src/storage/layout.ts";
import { DiskGuard } from "../../../src/supervisor/disk-guard.ts";
import { ScratchDisks } from "../../../src/supervisor/machines/scratch-disks.ts";
import { Compactor, type CompactorOptions } from "../../../src/supervisor/merging/compact.ts";
import type { MergeJob } from "../../../src/supervisor/merging/merge-layers.ts";
import { type Cost, costOf, Scheduler } from "../../../src/supervisor/operations/scheduler.ts";
import { alice, newId, someLayer } from "../database.ts";
import { parseExposition } from "../exposition.ts";
import { testDirectory } from "./layer-files.ts";

export const SHAPE = { vcpus: 1, memoryBytes: 128 * 1_048_576 };
/** of every layer of a chain except the base, in `bytes` */
export const LAYER_BYTES = 1000;
const never = new AbortController().signal;

/** A merge that runs until the test ends it. */
export interface FakeMerge {
  readonly job: MergeJob;
  readonly signal: AbortSignal;
  /** its CPU shares, one after the other */
  readonly weights: number[];
  /** true once its result was discarded */
  isDiscarded: boolean;
  finish(sizeBytes?: number): void;
  fail(): void;
}

/** A compactor on its own database, with simulated merges. */
export class Merging implements AsyncDisposable {
  readonly directory = testDirectory("merging");
  readonly layout: DataLayout = dataLayout(this.directory);
  readonly db = openDatabase(`${this.directory}/db`);
  readonly layers = new LayerStore({ layout: this.layout, chainOf: (topId) => layerIds(this.db, topId) });
  readonly scheduler: Scheduler;
  readonly merges: FakeMerge[] = [];
  readonly metrics = createMetrics();
  compactor: Compactor;
  now = 1_000_000;

  private constructor(places: Cost, more: Partial<CompactorOptions>) {
    this.scheduler = new Scheduler(places, () => this.now);
    this.compactor = this.open(more);
    this.db.orm.insert(accounts).values({ id: alice, createdAt: 1 }).run();
  }

  /** @param count of machines that fit the budget */
  static async start(count = 4, more: Partial<CompactorOptions> = {}): Promise<Merging> {
    const { memoryBytes, vcpus } = costOf(SHAPE);
    const merging = new Merging({ memoryBytes: memoryBytes * count, vcpus: vcpus * count }, more);
    await merging.layout.ensure();
    merging.compactor.start();
    return merging;
  }

  /** Another compactor on the same data, as after a restart. */
  open(more: Partial<CompactorOptions> = {}): Compactor {
    const { layout, layers, db, scheduler, metrics } = this;
    const none = () => Promise.reject(new Error("there are no machines"));
    return new Compactor({
      ...{ layout, layers, db, scheduler, metrics, log: silentLog, clock: () => this.now, shape: SHAPE },
      machines: { take: none, takeUnpooled: none, launcher: none },
      diskGuard: new DiskGuard({ directory: layout.root, reserveBytes: 0, log: silentLog }),
      indexMemory: new IndexMemory(),
      scratchDisks: new ScratchDisks({ templates: layout.scratch, temporary: layout.tmp }),
      ...{ accounts: new Accounts(), diskBytesMax: 1e9, diskReserveBytes: 0 },
      merge: (_tools, job, signal) => this.#merge(job, signal),
      ...more,
    });
  }

  /** Layers on top of `below`, or of a new base; the top one has an image. */
  chain(count: number, below: LayerId | null = null, sizeBytes = LAYER_BYTES): LayerId {
    let parentId = below ?? this.#layer(null, LAYER_BYTES);
    for (let at = 0; at < count; at++) parentId = this.#layer(parentId, sizeBytes);
    const image = { id: newId<ImageId>(), accountId: alice, layerId: parentId, sizeBytes, createdAt: 1 };
    this.db.orm.insert(images).values(image).run();
    return parentId;
  }

  #layer(parentId: LayerId | null, sizeBytes: number): LayerId {
    const layer = { ...someLayer({ parentId, sizeBytes, entryCount: 0 }), createdAt: 1 };
    this.db.orm.insert(layers).values(layer).run();
    return layer.id;
  }

  /** Attaches a chain and releases it at once; returns the attached layers. */
  async use(topId: LayerId): Promise<readonly LayerId[]> {
    using attachment = await this.compactor.attach(alice, topId, never);
    return attachment.ids;
  }

  rows(): MergedLayerRow[] {
    return mergedLayersByUse(this.db, alice);
  }

  async value(name: string, labels: Record<string, string> = {}): Promise<number | undefined> {
    return parseExposition(await this.metrics.registry.render()).value(name, labels);
  }

  #merge(job: MergeJob, signal: AbortSignal): Promise<StagedLayer> {
    const { promise, resolve, reject } = Promise.withResolvers<StagedLayer>();
    const weights: number[] = [];
    const merge: FakeMerge = {
      ...{ job, signal, weights, isDiscarded: false },
      finish: (sizeBytes = LAYER_BYTES * job.layers.ids.length) => resolve(this.#staged(merge, sizeBytes)),
      fail: () => reject(new Error("the merge failed")),
    };
    job.onMachine?.((cpuWeight) => void weights.push(cpuWeight));
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    if (signal.aborted) reject(signal.reason);
    this.merges.push(merge);
    return promise;
  }

  #staged(merge: FakeMerge, sizeBytes: number): StagedLayer {
    const id = newId<LayerId>();
    writeFileSync(layerPath(this.layout, id), "");
    let isKept = false;
    return {
      ...{ id, sizeBytes, diskBytes: sizeBytes, entryCount: 0 },
      keep: () => {
        isKept = true;
      },
      [Symbol.asyncDispose]: async () => {
        merge.isDiscarded = !isKept;
      },
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.compactor[Symbol.asyncDispose]();
    this.layers[Symbol.dispose]();
    this.db[Symbol.dispose]();
    rmSync(this.directory, { recursive: true });
  }
}
