import { RoundRobin } from "./round-robin.ts";

const waiting = new RoundRobin<() => void>();
let isScheduled = false;

function nextTurn(): void {
  waiting.take()?.();
  isScheduled = !waiting.isEmpty;
  if (isScheduled) setImmediate(nextTurn);
}

/**
 * Resolves in a turn of the event loop of its own: for what blocks for a while, such as a transaction, when much of it
 * may become due at once.
 * @param owner all that waits for one owner takes as many turns as what waits for any other, in the order of the calls
 */
export function ownTurn(owner: unknown = null): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  waiting.add(owner, resolve);
  if (!isScheduled) setImmediate(nextTurn);
  isScheduled = true;
  return promise;
}

let turnSince: number | null = null;

/** When the first call in this turn of the event loop was made, by `performance.now()`. */
export function sharedTurnSince(): number {
  if (turnSince === null) {
    turnSince = performance.now();
    setImmediate(() => {
      turnSince = null;
    });
  }
  return turnSince;
}
