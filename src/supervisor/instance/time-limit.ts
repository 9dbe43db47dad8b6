import { withinTime } from "../../system/waiting.ts";

/**
 * Part of a limit that counts from the request which is left for the way to the command, the end of its machine, and the
 * capture: a share of the limit within bounds, in `milliseconds`.
 */
const REST_RATIO = 1 / 5;
const REST_MS_MIN = 1000;
const REST_MS_MAX = 5000;
/** With less than this left, a command would only be killed. */
const LEFT_MS_MIN = 1000;

/** The time limit of a command that has begun, in `milliseconds`, as plain data. */
export interface TimeLimitRecord {
  /** as it was requested */
  readonly ms: number;
  readonly fromStartMs: number;
}

/** The time limit of a command, in `milliseconds`; it can only grow. */
export class TimeLimit {
  #ms: number;
  /** time on the monotonic clock at which the command has to end; null: the limit counts from its start */
  #endAtMs: number | null = null;
  /** the limit of a command that begins, from its start */
  #fromStartMs: number;

  /** @param waitedMs time since the request, when the limit counts from there; null: it counts from the command's start */
  constructor(ms: number, waitedMs: number | null = null) {
    this.#ms = ms;
    this.#fromStartMs = ms;
    if (waitedMs === null) return;
    const restMs = Math.min(REST_MS_MAX, Math.max(REST_MS_MIN, ms * REST_RATIO));
    this.#endAtMs = performance.now() + ms - waitedMs - restMs;
  }

  /** The limit of a command that has begun. */
  static resume({ ms, fromStartMs }: TimeLimitRecord): TimeLimit {
    const limit = new TimeLimit(ms);
    limit.#fromStartMs = fromStartMs;
    return limit;
  }

  record(): TimeLimitRecord {
    return { ms: this.#ms, fromStartMs: this.#fromStartMs };
  }

  /** The limit as it was requested. */
  get ms(): number {
    return this.#ms;
  }

  /**
   * Returns the limit of a command that begins now, from its start. A command that begins too late to end in time gets the
   * whole limit: clients that count from the request have left by then, and others wait for its result.
   */
  begin(): number {
    const leftMs = this.#endAtMs === null ? this.#ms : Math.floor(this.#endAtMs - performance.now());
    this.#fromStartMs = leftMs < LEFT_MS_MIN ? this.#ms : Math.min(leftMs, this.#ms);
    return this.#fromStartMs;
  }

  /** Extends the limit, to `ms` from the start. Returns false and changes nothing when it is already longer than that. */
  extend(ms: number): boolean {
    if (ms < this.#ms) return false;
    this.#ms = ms;
    this.#fromStartMs = ms;
    this.#endAtMs = null;
    return true;
  }

  /**
   * Waits for the work of a command that started at `startedAt` on the monotonic clock; null when it takes longer than the
   * limit and `graceMs` together. An extension of the limit during the wait counts.
   */
  async within<T>(work: Promise<T>, graceMs: number, startedAt = performance.now()): Promise<T | null> {
    const done = work.then((value) => ({ value }));
    for (;;) {
      const leftMs = this.#fromStartMs + graceMs - (performance.now() - startedAt);
      if (leftMs <= 0) return null;
      const settled = await withinTime(done, leftMs, () => null);
      if (settled !== null) return settled.value;
    }
  }
}
