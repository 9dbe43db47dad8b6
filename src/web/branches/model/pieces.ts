/** Longest time in which nothing else happens, in `milliseconds`: half a frame. */
const PIECE_MS = 8;

/** Ends when the browser has done what waits: input and drawing. */
export function pause(): Promise<void> {
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

/**
 * Does work in pieces, so that the page answers meanwhile. Short work is done before this returns.
 * @param isWanted is asked after each piece
 * @returns null when the work was given up
 */
export async function inPieces<T>(work: Generator<void, T>, isWanted: () => boolean): Promise<T | null> {
  for (;;) {
    const until = performance.now() + PIECE_MS;
    while (performance.now() < until) {
      const step = work.next();
      if (step.done === true) return step.value;
    }
    await pause();
    if (!isWanted()) return null;
  }
}
