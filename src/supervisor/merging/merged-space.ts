import type { Database } from "../../db/database.ts";
import {
  accountsWithMergedLayers,
  deleteMergedLayer,
  layerBytesOf,
  type MergedLayerRow,
  mergedBytesOf,
  mergedLayersByUse,
  setMergedLayersUsedAt,
} from "../../db/merged-layers.ts";
import type { AccountId, LayerId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";

/** What was used in this time is not given up for another merge: two chains would take turns for ever. */
const KEEP_MS = 600_000;
/** What could not be removed because it was in use is looked at again after this time. */
const RETRY_MS = 5000;
/** Merged layers that are looked at, at a time. */
const TRIM_COUNT_MAX = 500;

export interface MergedSpaceOptions {
  readonly db: Database;
  readonly layers: LayerStore;
  readonly log: Log;
  readonly clock: () => number;
  /** merged layers of an account take at most this share of the bytes of its layers */
  readonly mergedShare: number;
}

/** The room that merged layers take and may take, by account. */
export class MergedSpace {
  readonly #options: MergedSpaceOptions;
  /** accounts whose merged layers may be beyond their share, and when to look at them */
  readonly #grown = new Map<AccountId, number>();

  constructor(options: MergedSpaceOptions) {
    this.#options = options;
  }

  /** What a former process left may be beyond a share that was made smaller. */
  suspectAll(): void {
    for (const accountId of accountsWithMergedLayers(this.#options.db)) this.suspect(accountId);
  }

  /** The account's merged layers may be beyond their share now. */
  suspect(accountId: AccountId): void {
    this.#grown.set(accountId, Number.NEGATIVE_INFINITY);
  }

  /** True when there is, or will be, something to look at. */
  get isPending(): boolean {
    return this.#grown.size > 0;
  }

  /** An account to trim now, or null. */
  due(): AccountId | null {
    const now = this.#options.clock();
    for (const [accountId, dueAtMs] of this.#grown) if (dueAtMs <= now) return accountId;
    return null;
  }

  /**
   * Bytes by which merged layers of an account may grow without what is in use being given up for it.
   * @param allowedBytes what `allowedBytes` gave
   * @param chain merged layers of the chain that they grow for, of which it uses `ownBytes` now
   */
  roomBytes(
    accountId: AccountId,
    allowedBytes: number,
    chain: { readonly own: ReadonlySet<LayerId>; readonly ownBytes: number },
  ): number {
    const { db, clock } = this.#options;
    const { own, ownBytes } = chain;
    const othersBytes = mergedBytesOf(db, accountId, { usedAfterMs: clock() - KEEP_MS, except: [...own] });
    return allowedBytes - othersBytes - ownBytes;
  }

  /** Merged layers that are part of another one now: they go first, unless somebody uses them again. */
  retire(ids: readonly LayerId[]): void {
    setMergedLayersUsedAt(this.#options.db, ids, this.#options.clock() - KEEP_MS);
  }

  /**
   * Removes what was not used for longest until the account's merged layers are within their share. On a host that is
   * not quiet only what is of no use any more: the next run would have to make the rest again.
   */
  async trim(accountId: AccountId, { isQuiet }: { readonly isQuiet: boolean }): Promise<void> {
    const { db, clock, log } = this.#options;
    this.#grown.delete(accountId);
    try {
      const allowedBytes = await this.allowedBytes(accountId);
      const usedSinceMs = clock() - KEEP_MS;
      let excessBytes = mergedBytesOf(db, accountId) - allowedBytes;
      if (excessBytes <= 0) return;
      // Where these are not enough, the rest goes the next time.
      const rows = mergedLayersByUse(db, accountId, TRIM_COUNT_MAX);
      let isDone = totalBytes(rows) >= excessBytes;
      for (const row of rows) {
        if (excessBytes <= 0) break;
        // What is in use now makes room later: nothing else need go for it.
        excessBytes -= row.sizeBytes;
        if ((!isQuiet && row.lastUsedAt > usedSinceMs) || !(await this.#remove(row))) isDone = false;
      }
      if (!isDone) this.#grown.set(accountId, clock() + RETRY_MS);
    } catch (error) {
      log.warn("merged layers were not removed", { error });
    }
  }

  /** False when somebody holds it. */
  async #remove({ id, sizeBytes }: MergedLayerRow): Promise<boolean> {
    const { db, layers, log } = this.#options;
    if (layers.isHeld(id)) return false;
    deleteMergedLayer(db, id);
    await layers.remove(id);
    log.info("a merged layer was removed", { layer: id, size_bytes: sizeBytes });
    return true;
  }

  /** Bytes that merged layers of an account may take. */
  async allowedBytes(accountId: AccountId): Promise<number> {
    return this.#options.mergedShare * (await layerBytesOf(this.#options.db, accountId));
  }
}

/** Sum of sizes in `bytes`. */
export function totalBytes(rows: readonly { readonly sizeBytes: number }[]): number {
  return rows.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
}
