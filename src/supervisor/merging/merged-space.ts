import type { Database } from "../../db/database.ts";
import {
  accountsWithMergedLayers,
  deleteMergedLayer,
  layerBytesOf,
  type MergedLayerRow,
  mergedBytesOf,
  mergedLayersByUse,
  setMergedLayersUsedAt,
} from "../../db/images/merged-layers.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import type { AccountId, LayerId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";

/** Merged layers that were used this recently are not removed for others: two chains would replace each other for ever. */
const KEEP_MS = 600_000;
/** Pause before the next trim when merged layers were in use and could not be removed. */
const RETRY_MS = 5000;
/** Merged layers that one trim considers. */
const TRIM_COUNT_MAX = 500;

export interface MergedSpaceOptions {
  readonly db: Database;
  readonly layers: LayerStore;
  readonly log: Log;
  readonly clock: () => number;
  readonly accounts: Pick<Accounts, "limits">;
}

/** Bounds the disk space of the merged layers of each account. */
export class MergedSpace {
  readonly #options: MergedSpaceOptions;
  /** accounts whose merged layers may exceed their share, with the time of the next trim */
  readonly #trimAtMs = new Map<AccountId, number>();

  constructor(options: MergedSpaceOptions) {
    this.#options = options;
  }

  /** Schedules a trim of every account: the configured share may be smaller than that of the former process. */
  scheduleAllTrims(): void {
    for (const accountId of accountsWithMergedLayers(this.#options.db)) this.scheduleTrim(accountId);
  }

  /** Schedules a trim of an account whose merged layers may exceed their share now. */
  scheduleTrim(accountId: AccountId): void {
    this.#trimAtMs.set(accountId, Number.NEGATIVE_INFINITY);
  }

  /** True when a trim is scheduled. */
  get hasScheduledTrims(): boolean {
    return this.#trimAtMs.size > 0;
  }

  /** An account whose trim is due; null when there is none. */
  nextDueTrim(): AccountId | null {
    const now = this.#options.clock();
    for (const [accountId, dueAtMs] of this.#trimAtMs) if (dueAtMs <= now) return accountId;
    return null;
  }

  /**
   * Bytes by which the merged layers of an account may grow without the removal of recently used ones.
   * @param allowedBytes result of `allowedBytes`
   * @param chain `own`: merged layers of the chain to be merged, of which it uses `ownBytes` now
   */
  growthBytes(
    accountId: AccountId,
    allowedBytes: number,
    chain: { readonly own: ReadonlySet<LayerId>; readonly ownBytes: number },
  ): number {
    const { db, clock } = this.#options;
    const { own, ownBytes } = chain;
    const othersBytes = mergedBytesOf(db, accountId, { usedAfterMs: clock() - KEEP_MS, except: [...own] });
    return allowedBytes - othersBytes - ownBytes;
  }

  /** Moves merged layers that a larger one has replaced to the front of the removals, unless they are used again. */
  markReplaced(ids: readonly LayerId[]): void {
    setMergedLayersUsedAt(this.#options.db, ids, this.#options.clock() - KEEP_MS);
  }

  /**
   * Removes the least recently used merged layers until the account's are within their share. On a busy host, recently
   * used ones stay, because the next run would have to make them again.
   */
  async trim(accountId: AccountId, { isQuiet }: { readonly isQuiet: boolean }): Promise<void> {
    const { db, clock, log } = this.#options;
    this.#trimAtMs.delete(accountId);
    try {
      const allowedBytes = await this.allowedBytes(accountId);
      const usedSinceMs = clock() - KEEP_MS;
      let excessBytes = mergedBytesOf(db, accountId) - allowedBytes;
      if (excessBytes <= 0) return;
      // When these are not enough, the next trim removes more.
      const rows = mergedLayersByUse(db, accountId, TRIM_COUNT_MAX);
      let isDone = totalBytes(rows) >= excessBytes;
      for (const row of rows) {
        if (excessBytes <= 0) break;
        // A layer that is in use counts as removed: it is removed later, and no other layer in its place.
        excessBytes -= row.sizeBytes;
        if ((!isQuiet && row.lastUsedAt > usedSinceMs) || !(await this.#remove(row))) isDone = false;
      }
      if (!isDone) this.#trimAtMs.set(accountId, clock() + RETRY_MS);
    } catch (error) {
      log.warn("cannot remove merged layers", { error });
    }
  }

  /** False when the layer is in use. */
  async #remove({ id, sizeBytes }: MergedLayerRow): Promise<boolean> {
    const { db, layers, log } = this.#options;
    if (layers.isHeld(id)) return false;
    deleteMergedLayer(db, id);
    await layers.remove(id);
    log.info("removed a merged layer", { layer: id, size_bytes: sizeBytes });
    return true;
  }

  /** Largest size of the merged layers of an account, in `bytes`. */
  async allowedBytes(accountId: AccountId): Promise<number> {
    const { accounts, db } = this.#options;
    return accounts.limits.mergedLayers.max * (await layerBytesOf(db, accountId));
  }
}

/** Sum of sizes in `bytes`. */
export function totalBytes(rows: readonly { readonly sizeBytes: number }[]): number {
  return rows.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
}
