import type { OperationId } from "../../domain/ids.ts";
import { startTimer } from "../../system/waiting.ts";
import type { OperationEvents } from "./events.ts";

/**
 * Those who wait for operations to end, or to be left to the next start of the service. Whoever leaves is forgotten, so
 * that a client that asks again and again holds nothing of an operation that lives long.
 */
export class EndWaiters implements Disposable {
  readonly #waiters = new Map<OperationId, Set<() => void>>();
  readonly #subscription: Disposable;

  constructor(events: OperationEvents) {
    this.#subscription = events.subscribe((event) => {
      if (event.type !== "started") this.#wake(event.operation.id);
    });
  }

  /** Those who wait now. */
  get count(): number {
    return [...this.#waiters.values()].reduce((sum, { size }) => sum + size, 0);
  }

  /** Calls `wake` when the operation ends, unless disposed before. The operation must not have ended yet. */
  add(id: OperationId, wake: () => void): Disposable {
    const waiters = this.#waiters.get(id) ?? new Set();
    this.#waiters.set(id, waiters);
    // A function of its own, so that one that is added twice is two waiters.
    const waiter = () => wake();
    waiters.add(waiter);
    return {
      [Symbol.dispose]: () => {
        if (waiters.delete(waiter) && waiters.size === 0) this.#waiters.delete(id);
      },
    };
  }

  /** Resolves when the operation ends, `timeoutMs` passed or `signal` fired. The operation must not have ended yet. */
  async wait(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    const { promise: over, resolve } = Promise.withResolvers<void>();
    const stop = () => resolve();
    using _waiter = this.add(id, stop);
    using timer = startTimer(timeoutMs);
    void timer.fired.then(stop);
    signal.addEventListener("abort", stop, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", stop) };
    await over;
  }

  /** Wakes nobody: who waits still has a timer. */
  [Symbol.dispose](): void {
    this.#subscription[Symbol.dispose]();
    this.#waiters.clear();
  }

  #wake(id: OperationId): void {
    const waiters = this.#waiters.get(id);
    this.#waiters.delete(id);
    for (const wake of [...(waiters ?? [])]) wake();
  }
}
