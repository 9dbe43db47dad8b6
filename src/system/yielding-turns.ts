import { RoundRobin } from "./round-robin.ts";

/** Largest share of the time for this work while the other work is under way. */
const SHARE_MAX = 0.25;
/** Largest credit from a time in which the work used less than its share, in `milliseconds`. */
const BURST_MS = 2;
/** Largest debt of work that used more, in `milliseconds`: on a busy machine, other processes used most of that time. */
const DEBT_MS_MAX = 4;
/** Time after the latest `yield` for which the other work counts as under way, in `milliseconds`. */
const ACTIVE_MS = 20;
/** Intended duration of the work that is started in one turn of the event loop, in `milliseconds`. */
const SLICE_MS = 1;
/** Bounds a turn whose pieces of work are much larger than recent ones. */
const STARTS_COUNT_MAX = 16;

/**
 * Lets work use at most a quarter of the event loop while other, more urgent work is under way, and all of it otherwise. The
 * work is started a slice at a time. Event followers wait here while guests write output.
 */
export class YieldingTurns {
  readonly #now: () => number;
  readonly #waiting = new RoundRobin<() => void>();
  #activeUntilMs = Number.NEGATIVE_INFINITY;
  /** time that the work may use, in `milliseconds`, at `#creditedAtMs` */
  #creditMs = BURST_MS;
  #creditedAtMs: number;
  /** number of pieces that may be started in a turn: as many as recently took a slice */
  #countMax = 4;
  #count = 0;
  #startedAtMs = 0;
  #isPaused = false;

  /** @param now a monotonic clock, in `milliseconds` */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
    this.#creditedAtMs = now();
  }

  /** To be called while the other work is under way. */
  yield(): void {
    this.#activeUntilMs = this.#now() + ACTIVE_MS;
  }

  /**
   * Waits for a turn; the work must follow at once. Undefined: the turn is now.
   * @param owner owners take turns; calls for one owner resolve in order
   */
  take(owner: unknown): Promise<void> | undefined {
    if (this.#waiting.isEmpty && this.#mayStart()) {
      this.#start();
      return undefined;
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.add(owner, resolve);
    this.#serve();
    return promise;
  }

  /** Calls `start` in its turn, which may be now; the work must follow at once. Unlike `take`, it creates no promise. */
  call(owner: unknown, start: () => void): void {
    if (this.#waiting.isEmpty && this.#mayStart()) {
      this.#start();
      start();
      return;
    }
    this.#waiting.add(owner, start);
    this.#serve();
  }

  #mayStart(): boolean {
    return this.#count < this.#countMax && !this.#isPaused && this.#credit() > 0;
  }

  #start(): void {
    this.#count += 1;
    if (this.#count > 1) return;
    this.#startedAtMs = this.#now();
    // The work that was started in this turn is done when the next one begins.
    setImmediate(() => this.#endTurn());
  }

  #endTurn(): void {
    const tookMs = this.#now() - this.#startedAtMs;
    this.#creditMs = Math.max(this.#credit() - tookMs, -DEBT_MS_MAX);
    if (tookMs > 2 * SLICE_MS) this.#countMax = Math.max(1, this.#countMax >> 1);
    else if (tookMs < SLICE_MS) this.#countMax = Math.min(STARTS_COUNT_MAX, this.#countMax + 1);
    this.#count = 0;
    this.#serve();
  }

  #serve(): void {
    while (!this.#waiting.isEmpty && this.#mayStart()) {
      this.#start();
      this.#waiting.take()?.();
    }
    // Otherwise the end of this turn continues.
    if (this.#waiting.isEmpty || this.#count > 0 || this.#isPaused) return;
    this.#isPaused = true;
    setTimeout(() => this.#resume(), Math.max(1, (SLICE_MS - this.#creditMs) / SHARE_MAX));
  }

  #resume(): void {
    this.#isPaused = false;
    this.#serve();
  }

  #credit(): number {
    const nowMs = this.#now();
    const earnedMs = SHARE_MAX * (nowMs - this.#creditedAtMs);
    this.#creditMs = nowMs < this.#activeUntilMs ? Math.min(BURST_MS, this.#creditMs + earnedMs) : BURST_MS;
    this.#creditedAtMs = nowMs;
    return this.#creditMs;
  }
}
