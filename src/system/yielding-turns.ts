import { RoundRobin } from "./round-robin.ts";

/** Share of the time that the work may take while the other work is under way. */
const SHARE_MAX = 0.25;
/** The work may take so much more at once, in `milliseconds`, after a time in which it took less than its share. */
const BURST_MS = 2;
/** Largest debt of work that took more, in `milliseconds`: on a busy machine, most of its time was that of others. */
const DEBT_MS_MAX = 4;
/** The other work is taken to be under way for so long after its latest sign, in `milliseconds`. */
const ACTIVE_MS = 20;
/** What is started in one turn of the event loop is to take about this long, in `milliseconds`. */
const SLICE_MS = 1;
/** Bounds a turn in which much larger pieces of work are started than lately. */
const STARTS_COUNT_MAX = 16;

/**
 * Turns of the event loop for work that must not slow down other work, however much there is of it. It is started a slice
 * at a time. While the other work is under way, it gets a share of the time, and all of it otherwise.
 */
export class YieldingTurns {
  readonly #now: () => number;
  readonly #waiting = new RoundRobin<() => void>();
  #activeUntilMs = Number.NEGATIVE_INFINITY;
  /** time that the work may take, in `milliseconds`, at `#creditedAtMs` */
  #creditMs = BURST_MS;
  #creditedAtMs: number;
  /** how many may be started in a turn: as many as took a slice lately */
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
   * Waits for a turn; the work must follow at once. Undefined: it is its turn now.
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

  /** Calls `start` in its turn, which may be now; the work must follow at once. A promise would be garbage. */
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
    // What was started in this turn is done when the next one begins.
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
    // Otherwise the end of this turn goes on.
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
