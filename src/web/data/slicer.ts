import { nextTurn } from "./next-turn.ts";

/** Longest slice, in `milliseconds`: half a frame. */
const SLICE_MS = 8;

export interface SlicerOptions {
  /** ends the work between two slices */
  readonly signal?: AbortSignal;
  /** waits until the next slice may start; tests pass their own */
  readonly pause?: () => Promise<void>;
}

/** Cuts long work into slices, so that the page handles input and draws between them. Short tasks share a slice. */
export class Slicer {
  readonly #signal: AbortSignal | undefined;
  readonly #pause: () => Promise<void>;
  #until = performance.now() + SLICE_MS;

  constructor({ signal, pause = nextTurn }: SlicerOptions = {}) {
    this.#signal = signal;
    this.#pause = pause;
  }

  /** Starts a slice after pending input and drawing. @throws the reason of the signal */
  async begin(): Promise<void> {
    await this.#pause();
    this.#signal?.throwIfAborted();
    this.#until = performance.now() + SLICE_MS;
  }

  /** Starts another slice if the time of the present one is used up. @throws the reason of the signal */
  async rest(): Promise<void> {
    if (performance.now() >= this.#until) await this.begin();
  }

  /**
   * Runs the steps of a generator in as many slices as they need.
   * @param isWanted false stops the work after a slice
   * @returns the result; null if the work was stopped
   */
  async run<T>(work: Generator<void, T>, isWanted: () => boolean): Promise<T | null> {
    for (;;) {
      while (performance.now() < this.#until) {
        const step = work.next();
        if (step.done === true) return step.value;
      }
      await this.begin();
      if (!isWanted()) return null;
    }
  }
}
