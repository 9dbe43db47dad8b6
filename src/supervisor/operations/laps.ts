import type { Phase } from "../../domain/operation.ts";

/** A stopwatch for the steps of one operation: their times add up to the time since its construction. */
export class Laps {
  readonly #laps: [Phase, number][] = [];
  #at = performance.now();

  /** Records that `phase` ends now; the next step begins. */
  lap(phase: Phase): void {
    const now = performance.now();
    this.#laps.push([phase, now - this.#at]);
    this.#at = now;
  }

  /** The steps that have ended, with their durations in `milliseconds`. */
  get ended(): readonly (readonly [Phase, number])[] {
    return this.#laps;
  }
}
