import { statfsSync } from "node:fs";
import {
  type AccountSpace,
  accountSpaces,
  type ImageSpace,
  type LiveWork,
  largestImages,
  liveWork,
  type StoreTotals,
  storeTotals,
} from "../../db/totals.ts";
import type { Reclaimed } from "../../domain/operator/reclaimed.ts";
import { LIMIT_MAX } from "../../domain/tree/listing.ts";
import { inodeRoom } from "../../storage/free-space.ts";
import { hostFindings, isHealthy, runningFinding } from "../../supervisor/health/checks.ts";
import type { Finding } from "../../supervisor/health/finding.ts";
import { restartFinding } from "../../supervisor/health/restart.ts";
import type { Cost } from "../../supervisor/operations/scheduler.ts";
import { reclaim } from "../../supervisor/reclaim.ts";
import { SharedReading } from "../../supervisor/shared-reading.ts";
import { type Changed, change } from "../change.ts";
import type { ApplianceParts, Principal, ServiceParts } from "../parts.ts";

/** Sums over whole tables are cached for this long, in `milliseconds`. */
const SPACE_AGE_MS_MAX = 5000;
/** The checks start programs and query name servers, so their result is cached for this long. */
const HEALTH_AGE_MS_MAX = 30_000;

/** The work of an account that has not ended, and its share of the budget. */
export interface AccountLoad extends LiveWork, Cost {}

export interface Load {
  readonly budget: Cost;
  /** the share that running work holds; merges, which give way to it, are not counted */
  readonly used: Cost;
  readonly machines: {
    readonly inUse: number;
    readonly waiting: number;
    readonly ready: number;
    readonly poolSize: number;
  };
  /** ordered by their shares, the largest first */
  readonly accounts: readonly AccountLoad[];
}

export interface Space {
  readonly disk: {
    readonly totalBytes: number;
    readonly freeBytes: number;
    /** free space below which no new work is accepted */
    readonly reserveBytes: number;
    /** inodes; null when their number has no limit */
    readonly files: { readonly total: number; readonly free: number; readonly reserve: number } | null;
  };
  readonly totals: StoreTotals;
  readonly accounts: readonly AccountSpace[];
  /** ordered by the size that each added to its parent, the largest first */
  readonly images: readonly ImageSpace[];
}

export interface Collection {
  readonly reclaimed: Reclaimed;
  readonly retention: ApplianceParts["retention"];
}

export interface Health {
  readonly healthy: boolean;
  /** `milliseconds` since the epoch */
  readonly checkedAt: number;
  readonly findings: readonly Finding[];
}

/** Use cases of an operator for the whole appliance. Concurrent callers share the results of slow reads. */
export interface ApplianceUseCases {
  /** @param limit number of accounts */
  load(limit: number): Promise<Load>;
  /** @param limit number of accounts, and of images */
  space(limit: number): Promise<Space>;
  /** The objects that `collect` would remove. */
  collection(): Promise<Collection>;
  /** Removes them. Callers during a collection share its result. */
  collect(principal: Principal): Promise<Changed<Collection>>;
  /** The findings of `coppice doctor` without a trial. */
  health(): Promise<Health>;
}

export function applianceUseCases(parts: ServiceParts): ApplianceUseCases {
  const { db, layout, layers, limits, operations, clock, log, appliance, changes } = parts;
  const { scheduler, machines, poolSize, retention } = appliance;
  const reclaiming = { db, layout, layers, log, clock, changes, ...retention };
  const work = new SharedReading(() => liveWork(db), 0);
  const stored = new SharedReading(async () => {
    const accounts = await accountSpaces(db, LIMIT_MAX);
    return { totals: await storeTotals(db), accounts, images: await largestImages(db, LIMIT_MAX) };
  }, SPACE_AGE_MS_MAX);
  const preview = new SharedReading(() => reclaim(reclaiming, { dryRun: true }), SPACE_AGE_MS_MAX);
  const collection = new SharedReading(() => reclaim(reclaiming, { dryRun: false }), 0);
  const checks = new SharedReading(async () => {
    const onHost = await hostFindings(appliance.health, null);
    const running = runningFinding(operations.readiness(), "running");
    return { checkedAt: clock(), findings: [...onHost, restartFinding(await appliance.desk.running()), running] };
  }, HEALTH_AGE_MS_MAX);
  return {
    async load(limit) {
      const accounts = (await work.get()).map((each) => ({ ...each, ...scheduler.heldBy(each.accountId) }));
      accounts.sort((a, b) => b.vcpus - a.vcpus || b.memoryBytes - a.memoryBytes || b.pendingCount - a.pendingCount);
      const { budget, used } = scheduler;
      return { budget, used, machines: { ...machines.counts(), poolSize }, accounts: accounts.slice(0, limit) };
    },

    async space(limit) {
      const { totals, accounts, images } = await stored.get();
      const disk = statfsSync(layout.root);
      return {
        disk: {
          totalBytes: disk.blocks * disk.bsize,
          freeBytes: disk.bavail * disk.bsize,
          reserveBytes: limits.diskReserveBytes,
          files: inodeRoom(disk),
        },
        totals,
        accounts: accounts.slice(0, limit),
        images: images.slice(0, limit),
      };
    },

    async collection() {
      return { reclaimed: await preview.get(), retention };
    },

    async collect(principal) {
      const what = {
        noun: "space",
        verb: "collect",
        id: "",
        details: ({ reclaimed }: Collection) => ({ ...reclaimed }),
      } as const;
      return await change(parts, principal, what, async () => {
        const reclaimed = await collection.get();
        preview.forget();
        stored.forget();
        return { reclaimed, retention };
      });
    },

    async health() {
      const { checkedAt, findings } = await checks.get();
      return { healthy: isHealthy(findings), checkedAt, findings };
    },
  };
}
