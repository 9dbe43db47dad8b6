/** Longest time in which nothing else happens, in `milliseconds`: half a frame. */
const PIECE_MS = 8;

/** Ends when the browser has done what waits: input and drawing. */
function pause(): Promise<void> {
  const { scheduler } = globalThis as { readonly scheduler?: { yield?(): Promise<void> } };
  if (scheduler?.yield !== undefined) return scheduler.yield();
  const { promise, resolve } = Promise.withResolvers<void>();
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    resolve();
  };
  port2.postMessage(null);
  return promise;
}

/** Does work in pieces, so that the page answers meanwhile. Short works that follow each other are one piece. */
export class Pieces {
  #until = 0;

  /** Begins a piece, when the browser has done what waits. */
  async begin(): Promise<void> {
    await pause();
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
