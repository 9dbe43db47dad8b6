/** Longest piece of work without a break, in `milliseconds`. */
const TURN_MS = 8;

/** Breaks work when it has lasted for a while. @throws the reason of the signal, when nobody waits for the work any more */
export type Breather = () => Promise<void>;

/** @param pause ends when the work may go on */
export function breather(signal: AbortSignal, pause: () => Promise<void> = untilDrawn): Breather {
  let until = performance.now() + TURN_MS;
  return async () => {
    if (performance.now() < until) return;
    await pause();
    signal.throwIfAborted();
    until = performance.now() + TURN_MS;
  };
}

/** Lets the page draw and answer keys. */
function untilDrawn(): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  // A message comes after what waits already; a timer would come 4 ms later.
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    resolve();
  };
  port2.postMessage(null);
  return promise;
}
