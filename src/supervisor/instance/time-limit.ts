import { withinTime } from "../../system/waiting.ts";

/** The time limit of a command, in `milliseconds` from its start; it can only grow. */
export class TimeLimit {
  #ms: number;

  constructor(ms: number) {
    this.#ms = ms;
  }

  get ms(): number {
    return this.#ms;
  }

  /** Extends the limit. Returns false and changes nothing when it is already longer than `ms`. */
  extend(ms: number): boolean {
    if (ms < this.#ms) return false;
    this.#ms = ms;
    return true;
  }

  /**
   * Waits for the work of a command that has just started; null when it takes longer than the limit and `graceMs` together.
   * An extension of the limit during the wait counts.
   */
  async within<T>(work: Promise<T>, graceMs: number): Promise<T | null> {
    const startedAt = performance.now();
    const done = work.then((value) => ({ value }));
    for (;;) {
      const leftMs = this.#ms + graceMs - (performance.now() - startedAt);
      if (leftMs <= 0) return null;
      const settled = await withinTime(done, leftMs, () => null);
      if (settled !== null) return settled.value;
    }
  }
}
