import { RoundRobin } from "./round-robin.ts";

const waiting = new RoundRobin<() => void>();
let isScheduled = false;

function nextTurn(): void {
  waiting.take()?.();
  isScheduled = !waiting.isEmpty;
  if (isScheduled) setImmediate(nextTurn);
}

/**
 * Resolves in a turn of the event loop of its own. Use it before work that blocks for a while, such as a transaction, when
 * many such tasks may become due at once.
 * @param owner owners take turns; calls for one owner resolve in order
 */
export function ownTurn(owner: unknown = null): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  waiting.add(owner, resolve);
  if (!isScheduled) setImmediate(nextTurn);
  isScheduled = true;
  return promise;
}

let turnSince: number | null = null;

/** Time of the first call in this turn of the event loop, by `performance.now()`. */
export function sharedTurnSince(): number {
  if (turnSince === null) {
    turnSince = performance.now();
    setImmediate(() => {
      turnSince = null;
    });
  }
  return turnSince;
}

/** Counts what owners do within one turn of the event loop. */
export class TurnCounts {
  readonly #counts = new Map<unknown, number>();

  /** Adds one, and returns how many `owner` has in this turn. */
  add(owner: unknown): number {
    if (this.#counts.size === 0) setImmediate(() => this.#counts.clear());
    const count = (this.#counts.get(owner) ?? 0) + 1;
    this.#counts.set(owner, count);
    return count;
  }
}
