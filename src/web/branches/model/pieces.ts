import { nextTurn } from "../../data/next-turn.ts";

/** Longest time in which nothing else happens, in `milliseconds`: half a frame. */
const PIECE_MS = 8;

/** Does work in pieces, so that the page answers meanwhile. Short works that follow each other are one piece. */
export class Pieces {
  #until = 0;

  /** Begins a piece, when the browser has done what waits. */
  async begin(): Promise<void> {
    await nextTurn();
    this.#until = performance.now() + PIECE_MS;
  }

  /**
   * Goes on in the piece that was begun, and in as many more as the work takes.
   * @param isWanted is asked after each piece
   * @returns null when the work was given up
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
