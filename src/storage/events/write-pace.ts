/** Largest synchronous write, in `bytes`. To the page cache, it takes some tens of microseconds. */
export const WRITE_NOW_BYTES_MAX = 65_536;
/** A synchronous write that took longer, in `milliseconds`, has waited for the disk, as the next ones would. */
const SLOW_MS = 2;
/** Time without synchronous writes after a slow one, in `milliseconds`. */
const PAUSE_MS = 1000;

/**
 * Decides which writes to a log are synchronous. Those need no thread, so followers see an event a third of a millisecond
 * earlier. But the kernel lets writers wait when the disk is behind with their data, and the event loop must not wait.
 */
export class WritePace {
  readonly #now: () => number;
  #pausedUntilMs = Number.NEGATIVE_INFINITY;

  /** @param now a monotonic clock, in `milliseconds` */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** True when a write of so many bytes may be synchronous. */
  allows(bytes: number): boolean {
    return bytes <= WRITE_NOW_BYTES_MAX && this.#now() >= this.#pausedUntilMs;
  }

  /** Makes a synchronous write, and measures its time. @throws as `write` does */
  time(write: () => void): void {
    const startedAtMs = this.#now();
    write();
    const endedAtMs = this.#now();
    if (endedAtMs - startedAtMs > SLOW_MS) this.#pausedUntilMs = endedAtMs + PAUSE_MS;
  }
}
