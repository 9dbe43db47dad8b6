import type { LayerId } from "../../domain/ids.ts";

/** A merge that failed is tried again after this time, and after twice the time with each further failure. */
const RETRY_MS_MIN = 60_000;
const RETRY_MS_MAX = 86_400_000;
/** Failures that are remembered; the oldest is forgotten first. */
const FAILURES_COUNT_MAX = 1000;

interface Failure {
  readonly count: number;
  readonly retryAtMs: number;
}

/**
 * Merges that failed. What may have been the cause is left alone for a while, which grows with every failure, and
 * chains are merged above it only: a layer that cannot be merged costs a machine now and then, not with every run.
 * A new process tries once more.
 */
export class MergeFailures {
  /** by the topmost layer that was to be merged, the latest last */
  readonly #failures = new Map<LayerId, Failure>();

  /** Notes the failure of a merge of `ids`, the topmost last. */
  add(ids: readonly LayerId[], nowMs: number): void {
    const topId = ids.at(-1);
    if (topId === undefined) return;
    // A longer merge of the same layers is another try of the same thing.
    const count = 1 + Math.max(0, ...ids.map((id) => this.#failures.get(id)?.count ?? 0));
    const retryAtMs = nowMs + Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** (count - 1));
    this.#failures.delete(topId);
    this.#failures.set(topId, { count, retryAtMs });
    const [oldest] = this.#failures.keys();
    if (this.#failures.size > FAILURES_COUNT_MAX && oldest !== undefined) this.#failures.delete(oldest);
  }

  /** True while merges are not to reach down to this layer. */
  blocks(id: LayerId, nowMs: number): boolean {
    const failure = this.#failures.get(id);
    return failure !== undefined && nowMs < failure.retryAtMs;
  }
}
