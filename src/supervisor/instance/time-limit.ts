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

  /** False, and without effect, when the limit is longer than `ms` already. */
  extend(ms: number): boolean {
    if (ms < this.#ms) return false;
    this.#ms = ms;
    return true;
  }

  /** Waits for what began now, for as long as the limit and `graceMs` allow by then; null when it took longer. */
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
