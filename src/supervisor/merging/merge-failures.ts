import type { LayerId } from "../../domain/ids.ts";

/** Pause before a failed merge is tried again; each further failure doubles it. */
const RETRY_MS_MIN = 60_000;
const RETRY_MS_MAX = 86_400_000;
/** Failures that are remembered; the oldest ones are dropped. */
const FAILURES_COUNT_MAX = 1000;

interface Failure {
  readonly count: number;
  readonly retryAtMs: number;
}

/**
 * Remembers failed merges. The layers of a failed merge are left alone for a pause that grows with each failure, and
 * chains are merged only above them: a layer that cannot be merged must not cost a machine with every run. A restart
 * clears the failures.
 */
export class MergeFailures {
  /** by the top layer of the merge, the latest failure last */
  readonly #failures = new Map<LayerId, Failure>();

  /** Records the failure of a merge of `ids`, whose top layer comes last. */
  add(ids: readonly LayerId[], nowMs: number): void {
    const topId = ids.at(-1);
    if (topId === undefined) return;
    // A longer merge that includes the same layers counts as another attempt.
    const count = 1 + Math.max(0, ...ids.map((id) => this.#failures.get(id)?.count ?? 0));
    const retryAtMs = nowMs + Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** (count - 1));
    this.#failures.delete(topId);
    this.#failures.set(topId, { count, retryAtMs });
    const [oldest] = this.#failures.keys();
    if (this.#failures.size > FAILURES_COUNT_MAX && oldest !== undefined) this.#failures.delete(oldest);
  }

  /** True while no merge may include this layer. */
  blocks(id: LayerId, nowMs: number): boolean {
    const failure = this.#failures.get(id);
    return failure !== undefined && nowMs < failure.retryAtMs;
  }
}
